"""A checkpoint as a Hugging Face folder, whatever its ZeRO stage.

The work of `dsrun export`, in a process of its own because it needs torch. Tensors are streamed: memory holds one
tensor and a window of mapped files, however large the model is."""

import logging
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model

from dsrun.errors import DsrunError, ToolError, UsageError
from dsrun.models.headers import stored_weights
from dsrun.runs.records import write_json_atomic
from dsrun.system.files import parse_json, replace_folder, sha256_of
from dsrun.system.host import disk_free
from dsrun.system.terminal.display import size_text
from dsrun.system.terminal.stderr import say
from dsrun.train.base.console import ERROR_STYLE, Console, command_log
from dsrun.train.base.rank_context import explain_failure
from dsrun.train.base.refusals import refusal
from dsrun.train.checkpoint.plain import in_adapter
from dsrun.train.checkpoint.weight_files import ExportWeight, as_in_files, write_weights
from dsrun.train.export import final, lora, verify
from dsrun.train.export.weights import ADAPTER_CONFIG, FoundWeights, LazyWeights, find_weights, rounded
from dsrun.train.model.quantization import DTYPES
from dsrun.train.model.text_part import WholeCheckpoint, find_whole

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExportRequest:
    """What `dsrun export` was asked for; `dtype` None keeps that of the checkpoint, `limit` is bytes per shard, `base`
    the folder of the model that was trained, where it is known."""

    source: Path
    to: Path
    dtype: str | None
    merge_lora: bool
    limit: int
    force: bool
    base: Path | None = None
    text_only: bool = False

    @classmethod
    def from_json(cls, text: str) -> "ExportRequest":
        values = parse_json(text)
        paths = {name: Path(values[name]) for name in ("source", "to", "base") if values.get(name)}
        return cls(**{**values, **paths})


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
        job = _Job(request, found, dtype, partial)
        if lora:
            job.adapter()
        else:
            job.model()
        if not request.force and request.to.exists() and any(request.to.iterdir()):
            raise UsageError(f"--to {request.to} is not empty", fix="choose another folder, or --force")
        replace_folder(partial, request.to)
    except OSError as error:
        what = f"--to {request.to}: {error.strerror}: {error.filename}"
        raise UsageError(what, fix="choose another place") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@dataclass(frozen=True)
class _Job:
    request: ExportRequest
    found: FoundWeights
    dtype: torch.dtype | None
    folder: Path

    def model(self) -> None:
        source, base = self.request.source, self.request.base
        config = verify.read_config(source)
        weights = self._cast(self.found.weights)
        itself = find_whole(str(source), config)
        if itself and self.request.text_only:
            weights = final.text_weights(weights, itself.keys)
        empty = verify.empty_model(config)
        tied = dict(getattr(empty, "all_tied_weights_keys", None) or {})
        shapes = {name: tuple(value.shape) for name, value in empty.state_dict().items()}
        for name, shape in ((weight.name, weight.shape) for weight in weights):
            if (wanted := shapes.get(name, shape)) != shape:
                raise refusal("export.placeholder", source=source, name=name, shape=list(shape), wanted=list(wanted))
        names = {weight.name for weight in weights}
        weights = [w for w in weights if tied.get(w.name) not in names or tied[w.name] == w.name]
        whole = self._whole(base, config) if itself is None else None
        if self.found.by_module:
            stored = stored_weights(base) if base else None
            known = set(stored.shapes) if stored else set()
            if whole:
                known = {whole.keys.own(name) or "" for name in whole.stored}
            weights = as_in_files(weights, empty, known)
        self._write_model(weights, whole)
        final.copy_companions(source, self.folder)
        final.copy_card(source, self.folder)
        self._write_config(weights, whole, config if itself and self.request.text_only else None)
        dtypes = {weight.name: weight.dtype for weight in weights}
        dtypes |= {alias: dtypes[name] for alias, name in tied.items() if name in dtypes}
        # Rounded as the export is, the checkpoint's weights leave no difference, where they are kept so or exactly.
        coarser = self.found.dtypes - set(dtypes.values())
        if any(name not in self.found.reference and tied.get(name) not in self.found.reference for name in shapes):
            # Its files have other names than the model's modules: it is compared with what is loaded of them.
            changed = self._dtypes if self.dtype else frozenset()
            verify.compare(verify.logits_of_export(self.folder), verify.logits_of_export(source), changed)
            return
        self._verify(rounded(self.found.reference, dtypes), lambda model: model, coarser)

    def adapter(self) -> None:
        adapter = lora.read_adapter(self.request.source, self._cast(self.found.weights))
        if not self.request.merge_lora:
            self._write(list(adapter.weights.values()), stem="adapter_model")
            final.copy_companions(self.request.source, self.folder)
            final.copy_card(self.request.source, self.folder)
            shutil.copyfile(self.request.source / ADAPTER_CONFIG, self.folder / ADAPTER_CONFIG)
            # What it computes on its base model follows from its weights, which are the same as the checkpoint's.
            exported = find_weights(self.folder, None).reference
            for name in exported:
                verify.compare(exported[name].float(), self.found.reference[name].float(), self._dtypes)
            return
        base = lora.base_folder(adapter)
        adapter = lora.read_adapter(self.request.source, self.found.weights)
        stored, config = lora.base_weights(base), verify.read_config(base)
        rows = lora.grown_vocabulary(adapter, stored)
        by_peft = None
        if adapter.is_unusual:
            model = verify.with_adapter(base, self.request.source, vocabulary=rows)
            by_peft = verify.logits(model)
            weights = self._cast(lora.merged_by_peft(model, adapter, stored))
        else:
            weights = self._cast(lora.merged(adapter, stored))
        whole = self._whole(base, config)
        self._write_model(weights, whole)
        final.copy_companions(base, self.folder)
        final.copy_companions(self.request.source, self.folder)
        self._write_config(weights, whole, verify.read_config(self.folder) if self.request.text_only else None, rows)
        dtypes = self._dtypes | {weight.dtype for weight in weights if weight.dtype.is_floating_point}
        if by_peft is None and adapter.has_only_pairs and _has_modules(config, stored):
            reference = _with_base(self.found.reference, stored)
            adapters = LoraConfig.from_pretrained(self.request.source)
            self._verify(reference, lambda model: get_peft_model(model, adapters), dtypes)
        else:
            if by_peft is None:
                by_peft = verify.logits(verify.with_adapter(base, self.request.source, vocabulary=rows))
            verify.compare(verify.logits_of_export(self.folder), by_peft, dtypes)

    def _whole(self, base: Path | None, text: Any) -> WholeCheckpoint | None:
        """The checkpoint that the text model with the config `text` is to be put back into, if it is a part of one."""
        return None if base is None or self.request.text_only else find_whole(str(base), text)

    def _write_model(self, weights: list[ExportWeight], whole: WholeCheckpoint | None) -> None:
        """Write the weights, of a `whole` with the others that it has, and its other files."""
        if whole is None:
            self._write(weights)
            return
        weights, copied = final.put_together(weights, whole.folder, whole.keys)
        self._write(weights)
        final.check_copies(copied, self.folder)
        final.copy_companions(whole.folder, self.folder)

    @property
    def _dtypes(self) -> frozenset[torch.dtype]:
        """By whose rounding the exported weights and the checkpoint's may differ."""
        return self.found.dtypes | ({self.dtype} if self.dtype else frozenset())

    def _cast(self, weights: list[ExportWeight]) -> list[ExportWeight]:
        if self.dtype is None:
            return weights
        return [replace(w, dtype=self.dtype) if w.dtype.is_floating_point else w for w in weights]

    def _write(self, weights: list[ExportWeight], stem: str = "model") -> None:
        needed, free = sum(weight.nbytes for weight in weights), disk_free(self.folder)
        if free < needed:
            raise refusal("export.room", to=self.request.to, needed=size_text(needed), free=size_text(free))
        say("writing the weights")
        hashes = write_weights(weights, self.folder, stem=stem, limit=self.request.limit, beat=lambda: None)
        say("verifying what was written")
        for name, written in hashes.items():
            if sha256_of(self.folder / name) != written:
                raise ToolError(f"{self.folder / name} differs from what was written: the disk is failing")

    def _write_config(
        self, weights: list[ExportWeight], whole: WholeCheckpoint | None, text: Any, vocabulary: int | None = None
    ) -> None:
        """Write to config.json what that of the source changes in a `whole`, or `text`, the config of its text model
        alone; and the weights' dtype, in which from_pretrained loads them, and a grown vocabulary."""
        file, own = self.folder / "config.json", self.request.source / "config.json"
        if whole and own.is_file():
            write_json_atomic(file, final.whole_config(parse_json(own.read_text()), whole.folder, weights))
        elif text is not None:
            text.architectures = [type(verify.empty_model(text)).__name__]
            text.save_pretrained(self.folder)
        config = parse_json(file.read_text())
        if vocabulary is not None:
            holder = config if "vocab_size" in config else config.setdefault("text_config", {})
            holder["vocab_size"] = vocabulary
        final.set_dtype(config, weights)
        write_json_atomic(file, config)

    def _verify(
        self, reference: Mapping[str, torch.Tensor], adapt: Callable[[Any], Any], dtypes: frozenset[torch.dtype]
    ) -> None:
        expected = verify.logits_of_weights(verify.read_config(self.folder), reference, adapt)
        verify.compare(verify.logits_of_export(self.folder), expected, dtypes)


def _has_modules(config: Any, stored: list[ExportWeight]) -> bool:
    """Whether weights have the names that they have in a model of this config; not the experts of a layer, say, which
    it loads as one."""
    empty, names = verify.empty_model(config), {weight.name for weight in stored}
    return {*empty.state_dict()} <= names | {*(getattr(empty, "all_tied_weights_keys", None) or ())}


def _with_base(adapter: Mapping[str, torch.Tensor], stored: list[ExportWeight]) -> LazyWeights:
    weights = {weight.name: weight.read for weight in stored}

    def read(name: str) -> torch.Tensor:
        short = in_adapter(name)
        if short in own:
            return adapter[short]
        return weights[name.removeprefix(lora.PREFIX).replace(".base_layer.", ".")]()

    own = set(adapter)
    return LazyWeights((*adapter, *weights), read)
