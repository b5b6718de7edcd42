"""Proof of an export: from_pretrained loads it, and it computes what the checkpoint's weights compute.

Both models run layer by layer with their weights left on disk (accelerate's hooks load a module's weights before its
forward and drop them after), so that a proof needs no more memory than the largest layer."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from dsrun.errors import ToolError, UsageError
from dsrun.system.process.scratch import scratch_folder
from dsrun.train.base.refusals import refusal
from dsrun.train.export.final import class_of
from dsrun.train.export.lora import PREFIX
from dsrun.train.export.weights import LazyWeights
from dsrun.train.model.load import auto_class
from dsrun.train.model.text_part import find_whole, text_config

TOKENS = 12

# Largest difference of logits, relative to the largest logit, that rounding the weights explains: 8 and 11 bits of
# mantissa (half a unit is 2**-9 and 2**-12) in every weight, added up over layers.
TOLERANCE = {torch.bfloat16: 5e-2, torch.float16: 1e-2, torch.float32: 1e-4}


def logits_of_export(folder: Path) -> torch.Tensor:
    """The logits of the model in `folder`, loaded as anybody would load it. Raises ToolError where weights are missing,
    superfluous or of another shape."""
    config = read_config(folder)
    auto = auto_class(config) if find_whole(str(folder), config) is None else class_of(folder)
    with scratch_folder("dsrun-export-") as scratch:
        # In its own dtype, else transformers writes it all once more into the scratch folder.
        model, loading_info = auto.from_pretrained(
            folder, device_map={"": "disk"}, offload_folder=scratch, dtype="auto", output_loading_info=True
        )
        for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            names = sorted(map(str, loading_info.get(what) or ()))
            if names:
                raise ToolError(f"the exported model has {what.replace('_', ' ')}: {names[0]}")
        # Of the empty parameters; the hooks then load weights as fp32, in which rounding adds nothing.
        return logits(model.float())


def logits_of_weights(config: Any, weights: Mapping[str, torch.Tensor], adapt: Callable[[Any], Any]) -> torch.Tensor:
    """The logits of an empty model of `config`, given to `adapt` (which may add adapters), with these weights."""
    from accelerate import cpu_offload, init_empty_weights

    with init_empty_weights(include_buffers=False):
        model = adapt(auto_class(config).from_config(config, dtype=torch.float32))
    model.tie_weights()
    tied = _tied(model)
    cpu_offload(model, execution_device=torch.device("cpu"), offload_buffers=False, state_dict=_whole(weights, tied))
    return logits(model)


def with_adapter(base: Path, adapter: Path, *, vocabulary: int | None) -> Any:
    """The model in `base` with an adapter as peft loads it, in memory whole; its embedding has `vocabulary` rows, None:
    as many as it has. Where a config is beside the adapter, it is the model's."""
    from peft import PeftModel

    config = read_config(base)
    if (adapter / "config.json").is_file():
        rows, config = config.get_text_config().vocab_size, read_config(adapter)
        config.get_text_config().vocab_size = rows
    whole = find_whole(str(base), config)
    renaming = whole.keys.renaming if whole else None
    model = auto_class(config).from_pretrained(base, config=config, dtype=torch.float32, key_mapping=renaming)
    if vocabulary is not None:
        model.resize_token_embeddings(vocabulary, mean_resizing=False)
    return PeftModel.from_pretrained(model, adapter)


def compare(found: torch.Tensor, expected: torch.Tensor, dtypes: Iterable[torch.dtype]) -> float:
    """The largest difference relative to the largest value. Raises ToolError where rounding to `dtypes` does not
    explain it."""
    difference = float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-9))
    if not difference <= max(TOLERANCE.get(dtype, 0.0) for dtype in (torch.float32, *dtypes)):
        raise refusal("export.differs", difference=difference)
    return difference


def empty_model(config: Any) -> Any:
    """A model of `config` without weights."""
    from accelerate import init_empty_weights

    with init_empty_weights(include_buffers=False):
        return auto_class(config).from_config(config)


def _tied(model: Any) -> dict[str, str]:
    """The names of tied weights, each with the one that it is saved under; with adapters all have a prefix."""
    if not hasattr(model, "get_base_model"):
        return dict(getattr(model, "all_tied_weights_keys", None) or {})
    inner = getattr(model.get_base_model(), "all_tied_weights_keys", None) or {}
    return {PREFIX + name: PREFIX + saved for name, saved in inner.items()}


def _whole(weights: Mapping[str, torch.Tensor], tied: Mapping[str, str]) -> LazyWeights:
    def read(name: str) -> torch.Tensor:
        try:
            value = weights[name]
        except KeyError:
            if name not in tied:
                raise ToolError(f"the checkpoint has no {name}") from None
            value = weights[tied[name]]
        return value.float() if value.is_floating_point() else value

    return LazyWeights((*weights, *tied), read)


def logits(model: Any) -> torch.Tensor:
    """Of one row of tokens."""
    model.eval()
    text = model.config.get_text_config()
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, text.vocab_size, (1, TOKENS), generator=generator)
    inputs = {"input_ids": tokens}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = tokens.flip(1)
    with torch.no_grad():
        return model(**inputs, use_cache=False).logits.float()


def read_config(folder: Path) -> Any:
    """The config of the model, or of its text model that is trained. Raises UsageError where there is none, or one that
    needs code of the model's own."""
    from transformers import AutoConfig

    try:
        # Else it would ask on the terminal whether that code may run.
        return text_config(AutoConfig.from_pretrained(folder, trust_remote_code=False))
    except (ValueError, OSError) as error:
        raise UsageError(f"{folder}: its model is not known: {str(error).splitlines()[0]}") from error
