"""A checkpoint as a Hugging Face folder, whatever its ZeRO stage.

The work of `dsrun export`, in a process of its own because it needs torch. Tensors are streamed: memory holds one
tensor and a window of mapped files, however large the model is.
"""

import logging
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dsrun.errors import DsrunError, MissingError, ToolError, UsageError
from dsrun.runs.manifest import STATE_FILE
from dsrun.runs.records import write_json_atomic
from dsrun.system.files import parse_json, replace_folder, sha256_of
from dsrun.system.host import disk_free
from dsrun.system.terminal.display import size_text
from dsrun.system.terminal.stderr import say
from dsrun.train.base.console import ERROR_STYLE, Console, command_log
from dsrun.train.base.rank_context import explain_failure
from dsrun.train.card.metadata import FILE as CARD
from dsrun.train.checkpoint.plain import in_adapter
from dsrun.train.checkpoint.weight_files import ExportWeight, write_weights
from dsrun.train.export import lora, verify
from dsrun.train.export.weights import ADAPTER_CONFIG, FoundWeights, LazyWeights, find_weights, rounded

logger = logging.getLogger(__name__)

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

# Beside the weights; tokenizers of every family, and code that a model brings along.
COMPANIONS = (
    "config.json", "generation_config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*",
    "merges.txt", "*.model", "chat_template*", "additional_chat_templates/*", "*processor_config.json",
    "sentencepiece*", "spiece*", "*.py",
)  # fmt: skip
# DeepSpeed puts its scripts into every checkpoint.
NOT_COMPANIONS = ("zero_to_fp32.py", "zero_to_torch.py")


@dataclass(frozen=True)
class ExportRequest:
    """What `dsrun export` was asked for; `dtype` None keeps that of the checkpoint, `limit` is bytes per shard."""

    source: Path
    to: Path
    dtype: str | None
    merge_lora: bool
    limit: int
    force: bool

    @classmethod
    def from_json(cls, text: str) -> "ExportRequest":
        values = parse_json(text)
        return cls(**{**values, "source": Path(values["source"]), "to": Path(values["to"])})


def main(argv: list[str], console: Console, product: int) -> int:
    """The exit code; the folder's name goes to the file descriptor `product`."""
    request = ExportRequest.from_json(argv[0])
    try:
        export(request, notify=console.notice)
    except (Exception, KeyboardInterrupt) as error:
        code, message = explain_failure(error)
        if not isinstance(error, DsrunError | KeyboardInterrupt):
            logger.exception("export failed")
            message = f"{message} (its traceback is in {command_log('export')})"
        console.print(f"error: {message}", style=ERROR_STYLE)
        return code
    os.write(product, f"{request.to}\n".encode())
    return 0


def export(request: ExportRequest, *, notify: Callable[[str], None]) -> None:
    """Write `request.to`, atomically and after checking it. Raises UsageError for a source without whole weights, and
    ToolError where the proof fails."""
    dtype = DTYPES[request.dtype] if request.dtype else None
    say("reading the checkpoint")
    found = find_weights(request.source, dtype)
    for notice in found.notices:
        notify(notice)
    lora = (request.source / ADAPTER_CONFIG).is_file()
    if request.merge_lora and not lora:
        raise UsageError(f"{request.source} contains no LoRA adapter", fix="leave out --merge-lora")
    partial = request.to.with_name(f".{request.to.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        job = _Job(request, found, dtype, partial, notify)
        if lora:
            job.adapter()
        else:
            job.model()
        if not request.force and request.to.exists() and any(request.to.iterdir()):
            raise UsageError(f"--to {request.to} is not empty", fix="choose another folder, or --force")
        replace_folder(partial, request.to)
    except OSError as error:
        raise UsageError(
            f"--to {request.to}: {error.strerror}: {error.filename}", fix="choose another place"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@dataclass(frozen=True)
class _Job:
    request: ExportRequest
    found: FoundWeights
    dtype: torch.dtype | None
    folder: Path
    notify: Callable[[str], None]

    def model(self) -> None:
        weights = self._cast(self.found.weights)
        tied, shapes = self._architecture()
        for weight in weights:
            if shapes.get(weight.name, weight.shape) != weight.shape:
                raise UsageError(
                    f"{self.request.source}: {weight.name} has shape {list(weight.shape)} instead of"
                    f" {list(shapes[weight.name])}: a placeholder that ZeRO-3 left (zero3_empty_weights)"
                )
        names = {weight.name for weight in weights}
        weights = [w for w in weights if tied.get(w.name) not in names or tied[w.name] == w.name]
        self._write(weights)
        _copy_companions(self.request.source, self.folder)
        _copy_card(self.request.source, self.folder)
        self._update_config(weights)
        dtypes = {weight.name: weight.dtype for weight in weights}
        dtypes |= {alias: dtypes[name] for alias, name in tied.items() if name in dtypes}
        # Rounded as the export is, the checkpoint's weights leave no difference, where they are kept so or exactly.
        coarser = self.found.dtypes - set(dtypes.values())
        self._verify(rounded(self.found.reference, dtypes), lambda model: model, coarser)

    def adapter(self) -> None:
        adapter = lora.read_adapter(self.request.source, self._cast(self.found.weights))
        if not self.request.merge_lora:
            self._write(list(adapter.weights.values()), stem="adapter_model")
            _copy_companions(self.request.source, self.folder)
            _copy_card(self.request.source, self.folder)
            shutil.copyfile(self.request.source / ADAPTER_CONFIG, self.folder / ADAPTER_CONFIG)
            self._verify_adapter(adapter)
            return
        base = lora.base_folder(adapter)
        whole = lora.read_adapter(self.request.source, self.found.weights)
        weights = self._cast(lora.merged(whole, base))
        self._write(weights)
        _copy_companions(base, self.folder)
        _copy_companions(self.request.source, self.folder)
        self._update_config(weights, lora.grown_vocabulary(whole, base))
        if whole.has_only_pairs:
            reference = _with_base(self.found.reference, base)
            self._verify(reference, lambda model: _with_adapter(model, self.request.source), self._dtypes)
        else:
            rows = lora.grown_vocabulary(whole, base)
            expected = verify.logits_of_adapter(base, self.request.source, vocabulary=rows)
            verify.compare(verify.logits_of_export(self.folder), expected, self._dtypes)

    @property
    def _dtypes(self) -> frozenset[torch.dtype]:
        """By whose rounding the exported weights and the checkpoint's may differ."""
        return self.found.dtypes | ({self.dtype} if self.dtype else frozenset())

    def _cast(self, weights: list[ExportWeight]) -> list[ExportWeight]:
        if self.dtype is None:
            return weights
        return [replace(w, dtype=self.dtype) if w.dtype.is_floating_point else w for w in weights]

    def _architecture(self) -> tuple[dict[str, str], dict[str, tuple[int, ...]]]:
        """Names that transformers ties to another one, which alone is to be saved; and the shapes of all weights."""
        from accelerate import init_empty_weights

        config = verify.read_config(self.request.source)
        with init_empty_weights(include_buffers=False):
            model = verify.auto_class(config).from_config(config)
        shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
        return dict(getattr(model, "all_tied_weights_keys", None) or {}), shapes

    def _write(self, weights: list[ExportWeight], stem: str = "model") -> None:
        needed, free = sum(weight.nbytes for weight in weights), disk_free(self.folder)
        if free < needed:
            raise UsageError(
                f"--to {self.request.to}: the weights take {size_text(needed)}, {size_text(free)} are free",
                fix="free space there, or choose another folder",
            )
        say("writing the weights")
        hashes = write_weights(weights, self.folder, stem=stem, limit=self.request.limit, beat=lambda: None)
        say("verifying what was written")
        for name, written in hashes.items():
            if sha256_of(self.folder / name) != written:
                raise ToolError(f"{self.folder / name} differs from what was written: the disk is failing")

    def _update_config(self, weights: list[ExportWeight], vocabulary: int | None = None) -> None:
        """Write the weights' dtype, in which from_pretrained loads them, and a grown vocabulary to config.json."""
        config = parse_json((self.folder / "config.json").read_text())
        if vocabulary is not None:
            holder = config if "vocab_size" in config else config.setdefault("text_config", {})
            holder["vocab_size"] = vocabulary
        dtypes = {weight.dtype for weight in weights if weight.dtype.is_floating_point}
        config.pop("torch_dtype", None)
        config["dtype"] = str(max(dtypes, key=lambda dtype: dtype.itemsize)).removeprefix("torch.")
        write_json_atomic(self.folder / "config.json", config)

    def _verify(
        self, reference: Mapping[str, torch.Tensor], adapt: Callable[[Any], Any], dtypes: frozenset[torch.dtype]
    ) -> None:
        expected = verify.logits_of_weights(verify.read_config(self.folder), reference, adapt)
        verify.compare(verify.logits_of_export(self.folder), expected, dtypes)

    def _verify_adapter(self, adapter: lora.LoraAdapter) -> None:
        """The adapter on its base model, as exported and as the checkpoint has it; where the base is not to be had, the
        weights alone."""
        exported = find_weights(self.folder, None).reference
        base: Path | None
        try:
            base = lora.base_folder(adapter)
        except (UsageError, MissingError) as error:
            self.notify(f"{error.message}: compared without a forward pass")
            base = None
        if base is None or not adapter.has_only_pairs:
            for name in exported:
                verify.compare(exported[name].float(), self.found.reference[name].float(), self._dtypes)
            return
        config = verify.read_config(base)
        rows = lora.grown_vocabulary(adapter, base)
        if rows is not None:
            config.get_text_config().vocab_size = rows
        found, expected = (
            verify.logits_of_weights(
                config, _with_base(each, base), lambda model: _with_adapter(model, self.request.source)
            )
            for each in (exported, self.found.reference)
        )
        verify.compare(found, expected, self._dtypes)


def _with_base(adapter: Mapping[str, torch.Tensor], base: Path) -> LazyWeights:
    weights = find_weights(base, None).reference

    def read(name: str) -> torch.Tensor:
        short = in_adapter(name)
        if short in own:
            return adapter[short]
        return weights[name.removeprefix(lora.PREFIX).replace(".base_layer.", ".")]

    own = set(adapter)
    return LazyWeights((*adapter, *weights), read)


def _with_adapter(model: Any, checkpoint: Path) -> Any:
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig.from_pretrained(checkpoint))


def _copy_companions(source: Path, folder: Path) -> None:
    for pattern in COMPANIONS:
        for path in source.glob(pattern):
            if path.is_file() and path.name not in NOT_COMPANIONS:
                copy = folder / path.relative_to(source)
                copy.parent.mkdir(exist_ok=True)
                shutil.copyfile(path, copy)


def _copy_card(source: Path, folder: Path) -> None:
    """The model card of a final model; what a checkpoint of LoRA has is peft's empty template."""
    card = source / CARD
    if card.is_file() and not (source / STATE_FILE).is_file():
        shutil.copyfile(card, folder / CARD)
