"""LoRA adapters at export: on their own, or merged into the base model weight by weight."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dsrun.errors import UsageError
from dsrun.system.files import parse_json
from dsrun.train.export.weights import ADAPTER_CONFIG, stored_weights
from dsrun.train.export.write import Weight
from dsrun.train.model import is_unreachable, unreachable

PREFIX = "base_model.model."
_PAIR = re.compile(r"(?P<module>.+)\.lora_(?P<which>[AB])\.weight")
# What changes the formula of a merge beyond W + scaling * B A.
_UNUSUAL = ("use_dora", "alpha_pattern", "layer_replication", "target_parameters", "lora_bias", "use_qalora")

_IN_MEMORY = "export the adapter, and merge it with peft's merge_and_unload"


@dataclass(frozen=True)
class Adapter:
    """An adapter's configuration and weights, by the names they have in its file."""

    config: dict[str, Any]
    weights: dict[str, Weight]

    @property
    def base(self) -> str:
        return str(self.config.get("base_model_name_or_path") or "")


def read_adapter(checkpoint: Path, weights: list[Weight]) -> Adapter:
    config = parse_json((checkpoint / ADAPTER_CONFIG).read_text())
    return Adapter(config, {weight.name: weight for weight in weights})


def base_folder(adapter: Adapter) -> Path:
    """Where the base model's files are, brought from the Hub where it is not a folder."""
    path = Path(adapter.base)
    if path.is_dir():
        return path
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        found = snapshot_download(adapter.base, allow_patterns=["*.safetensors", "*.json", "*.model", "*.txt"])
    except (OSError, ValueError, HfHubHTTPError, HFValidationError) as error:
        if is_unreachable(error):
            raise unreachable(f"base model {adapter.base}", str(error), instead="a folder") from error
        raise UsageError(
            f"the adapter's base model {adapter.base!r} is neither a folder nor on the Hub",
            fix="put it where base_model_name_or_path in adapter_config.json says",
        ) from error
    return Path(found)


def grown_vocabulary(adapter: Adapter, base: Path) -> int | None:
    """Rows of the embedding where it was grown for a tokenizer with more tokens than the base model has, else None.
    peft then saves it whole, and the base model's config gives the old number."""
    shapes = {weight.name: weight.shape for weight in stored_weights(base, "model*.safetensors")}
    _, whole = _parts(adapter)
    grown = [weight.shape[0] for name, weight in whole.items() if shapes.get(name, weight.shape) != weight.shape]
    return grown[0] if grown else None


def merged(adapter: Adapter, base: Path) -> list[Weight]:
    """The base model's weights with the adapter added (Hu et al. 2021: W + alpha/r B A), each computed when it is
    read."""
    _refuse_unusual(adapter.config)
    stored = stored_weights(base, "model*.safetensors")
    if not stored:
        raise UsageError(f"the adapter's base model {base} has no safetensors files")
    pairs, whole = _parts(adapter)
    known = {weight.name for weight in stored}
    lost = [f"{module}.weight" for module in pairs if f"{module}.weight" not in known]
    if lost:
        raise UsageError(f"the adapter changes {lost[0]}, which its base model {base} does not have")
    weights = []
    for weight in stored:
        module = weight.name.removesuffix(".weight")
        if weight.name in whole:
            weights.append(replace(whole[weight.name], name=weight.name, dtype=weight.dtype))
        elif module in pairs:
            weights.append(_added(weight, *pairs[module], adapter.config))
        else:
            weights.append(weight)
    return weights


def _parts(adapter: Adapter) -> tuple[dict[str, tuple[Weight, Weight]], dict[str, Weight]]:
    """The pairs of A and B by module, and the weights that replace those of the base whole."""
    halves: dict[str, dict[str, Weight]] = {}
    whole: dict[str, Weight] = {}
    for name, weight in adapter.weights.items():
        short = name.removeprefix(PREFIX)
        found = _PAIR.fullmatch(short)
        if found:
            halves.setdefault(found["module"], {})[found["which"]] = weight
        elif "lora_" in short:
            raise UsageError(f"the adapter's {name} is not of a kind that can be merged here", fix=_IN_MEMORY)
        else:
            whole[short] = weight
    return {module: (half["A"], half["B"]) for module, half in halves.items()}, whole


def _refuse_unusual(config: dict[str, Any]) -> None:
    if config.get("peft_type") != "LORA":
        raise UsageError(f"a {config.get('peft_type')} adapter cannot be merged here", fix=_IN_MEMORY)
    unusual = next((name for name in _UNUSUAL if config.get(name)), None)
    if unusual:
        raise UsageError(f"an adapter with {unusual} cannot be merged here", fix=_IN_MEMORY)


def _added(weight: Weight, a: Weight, b: Weight, config: dict[str, Any]) -> Weight:
    rank = a.shape[0]
    scaling = config["lora_alpha"] / (rank**0.5 if config.get("use_rslora") else rank)

    def read() -> torch.Tensor:
        delta = b.read().float() @ a.read().float()
        if config.get("fan_in_fan_out"):
            delta = delta.T
        return weight.read().float().add_(delta, alpha=scaling)

    return replace(weight, read=read)
