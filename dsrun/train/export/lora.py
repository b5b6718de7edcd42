"""LoRA adapters at export: on their own, or merged into the base model weight by weight."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from peft import set_peft_model_state_dict
from transformers import AutoConfig

from dsrun.errors import UsageError
from dsrun.system.files import parse_json
from dsrun.train.base.refusals import refusal, refuse
from dsrun.train.checkpoint.weight_files import ExportWeight, as_in_files, stored_weights
from dsrun.train.export.final import WEIGHTS, text_weights
from dsrun.train.export.weights import ADAPTER_CONFIG
from dsrun.train.model.load import not_fetched
from dsrun.train.model.text_part import find_whole, text_config

PREFIX = "base_model.model."
_PART = re.compile(r"(?P<module>.+)\.lora_(?:(?P<half>[AB])\.weight|(?P<magnitude>magnitude_vector)(?:\.weight)?)")
# Rows of an embedding that were trained for new tokens, and the embedding itself, which peft may save with them.
_TOKENS, _EMBEDDING = ".token_adapter.trainable_tokens_delta", ".token_adapter.base_layer.weight"
# What changes the formula of a merge beyond W + scaling * B A; peft gives adapters of fused experts the first.
_UNUSUAL = ("alpha_pattern", "layer_replication", "target_parameters", "lora_bias", "use_qalora")

_IN_MEMORY = "export the adapter, and merge it with peft's merge_and_unload"


@dataclass(frozen=True)
class LoraAdapter:
    """An adapter's configuration and weights, by the names they have in its file."""

    config: dict[str, Any]
    weights: dict[str, ExportWeight]

    @property
    def base(self) -> str:
        return str(self.config.get("base_model_name_or_path") or "")

    @property
    def has_only_pairs(self) -> bool:
        """Whether it is the plain LoRA of the paper: of linear layers, without magnitudes, nothing trained whole."""
        more = ("use_dora", "modules_to_save", "trainable_token_indices", "target_parameters")
        return not any(self.config.get(name) for name in more)

    @property
    def is_unusual(self) -> bool:
        """Whether peft alone knows how to merge it."""
        return any(self.config.get(name) for name in _UNUSUAL)


def read_adapter(checkpoint: Path, weights: list[ExportWeight]) -> LoraAdapter:
    config = parse_json((checkpoint / ADAPTER_CONFIG).read_text())
    return LoraAdapter(config, {weight.name: weight for weight in weights})


def base_folder(adapter: LoraAdapter) -> Path:
    """Where the base model's files are, brought from the Hub where it is not a folder."""
    path = Path(adapter.base)
    if path.is_dir():
        return path
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        found = snapshot_download(
            adapter.base,
            revision=adapter.config.get("revision"),
            allow_patterns=["*.safetensors", "*.json", "*.model", "*.txt"],
        )
    except (OSError, ValueError, HfHubHTTPError, HFValidationError) as error:
        if absent := not_fetched(f"base model {adapter.base}", error, instead="a folder"):
            raise absent from error
        raise refusal("export.no_base", base=adapter.base) from error
    return Path(found)


@dataclass(frozen=True)
class _Parts:
    """The weights of an adapter by what they change: by module A, B and DoRA's magnitudes; whole weights by name; and
    by module the rows of an embedding."""

    changes: dict[str, dict[str, ExportWeight]]
    whole: dict[str, ExportWeight]
    rows: dict[str, ExportWeight]


def grown_vocabulary(adapter: LoraAdapter, base: list[ExportWeight]) -> int | None:
    """Rows of the embedding where it was grown for a tokenizer with more tokens than the base model has, else None; the
    base model's config gives the old number."""
    shapes = {weight.name: weight.shape for weight in base}
    parts = _parts(adapter)
    grown = [weight.shape[0] for name, weight in parts.whole.items() if shapes.get(name, weight.shape) != weight.shape]
    for module in parts.rows:
        last = max(_token_ids(adapter, module)) + 1
        if last > shapes.get(f"{module}.weight", (last,))[0]:
            grown.append(last)
    return grown[0] if grown else None


def base_weights(base: Path) -> list[ExportWeight]:
    """The weights of the model in `base`; where it is more than a text model, of that part, by the names there."""
    stored = stored_weights(base, WEIGHTS)
    if not stored:
        raise UsageError(f"the adapter's base model {base} has no safetensors files")
    whole = find_whole(str(base), text_config(AutoConfig.from_pretrained(base)))
    return text_weights(stored, whole.keys) if whole else stored


def merged(adapter: LoraAdapter, stored: list[ExportWeight]) -> list[ExportWeight]:
    """The base model's weights with the adapter added (Hu et al. 2021: W + alpha/r B A), each computed when it is
    read."""
    parts = _parts(adapter)
    halves = [f"{name}.lora_{half}" for name, change in parts.changes.items() for half in "AB" if half not in change]
    known = {weight.name for weight in stored}
    lost = [f"{module}.weight" for module in parts.changes if f"{module}.weight" not in known]
    refuse("merge", halves=halves, lost=lost)
    weights = []
    for weight in stored:
        module = weight.name.removesuffix(".weight")
        if weight.name in parts.whole:
            weights.append(replace(parts.whole[weight.name], name=weight.name, dtype=weight.dtype))
        elif module in parts.changes:
            weights.append(_added(weight, parts.changes[module], adapter.config))
        elif module in parts.rows:
            weights.append(_with_rows(weight, parts.rows[module], _token_ids(adapter, module)))
        else:
            weights.append(weight)
    return weights


def merged_by_peft(model: Any, adapter: LoraAdapter, stored: list[ExportWeight]) -> list[ExportWeight]:
    """The same by peft, whose `model` is the base model with the adapter, in memory whole."""
    # As exact as they are known: files may hold what they were rounded to.
    set_peft_model_state_dict(model, {name: weight.read() for name, weight in adapter.weights.items()})
    dtypes, whole = {weight.name: weight.dtype for weight in stored}, model.merge_and_unload()
    weights = [ExportWeight(name, x.dtype, tuple(x.shape), x.detach) for name, x in whole.state_dict().items()]
    found = as_in_files(weights, whole, dtypes)
    # A tied weight is stored once.
    return [replace(each, dtype=dtypes[each.name]) for each in found if each.name in dtypes]


def _parts(adapter: LoraAdapter) -> _Parts:
    if adapter.config.get("peft_type") != "LORA":
        raise UsageError(f"a {adapter.config.get('peft_type')} adapter cannot be merged here", fix=_IN_MEMORY)
    parts = _Parts({}, {}, {})
    for name, weight in adapter.weights.items():
        short = name.removeprefix(PREFIX)
        found = _PART.fullmatch(short)
        if found:
            parts.changes.setdefault(found["module"], {})[found["half"] or found["magnitude"]] = weight
        elif "lora_" in short:
            raise UsageError(f"the adapter's {name} is not of a kind that can be merged here", fix=_IN_MEMORY)
        elif short.endswith(_TOKENS):
            parts.rows[short.removesuffix(_TOKENS)] = weight
        elif not short.endswith(_EMBEDDING):
            parts.whole[short] = weight
    return parts


def _token_ids(adapter: LoraAdapter, module: str) -> list[int]:
    """The ids whose rows of `module` were trained; where it is tied to another module, those of that one."""
    named = adapter.config.get("trainable_token_indices") or {}
    if isinstance(named, list):
        return named
    found = next((ids for name, ids in named.items() if module == name or module.endswith(f".{name}")), None)
    return list(found or next(iter(named.values())))


def _with_rows(weight: ExportWeight, rows: ExportWeight, ids: list[int]) -> ExportWeight:
    """An embedding with these rows replaced, and grown where they lie beyond its end."""
    count = max(weight.shape[0], max(ids) + 1)

    def read() -> torch.Tensor:
        whole = torch.zeros(count, *weight.shape[1:])
        whole[: weight.shape[0]] = weight.read().float()
        whole[ids] = rows.read().float()
        return whole

    return replace(weight, shape=(count, *weight.shape[1:]), read=read)


def _added(weight: ExportWeight, change: dict[str, ExportWeight], config: dict[str, Any]) -> ExportWeight:
    """W + s B A; with DoRA (Liu et al. 2024, eq. 5) its rows get the lengths that were trained."""
    a, b, magnitude = change["A"], change["B"], change.get("magnitude_vector")
    rank = a.shape[0]
    scaling = config["lora_alpha"] / (rank**0.5 if config.get("use_rslora") else rank)

    def read() -> torch.Tensor:
        delta = b.read().float() @ a.read().float()
        if config.get("fan_in_fan_out"):
            delta = delta.T
        changed = weight.read().float().add_(delta, alpha=scaling)
        if magnitude is None:
            return changed
        return changed * (magnitude.read().float() / torch.linalg.norm(changed, dim=1)).unsqueeze(1)

    return replace(weight, read=read)
