"""The small model of an architecture: its config with two layers of each kind and small sizes, all else as it is, and
random weights."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForMultimodalLM,
    AutoModelForSeq2SeqLM,
    PreTrainedConfig,
)

from dsrun.datafiles import evaluate, toml_beside
from dsrun.errors import UsageError, one_line
from dsrun.train.model.initial_weights import initialise, undrawn

_TABLE = toml_beside(__file__)
_SIZES = {name: expression for expression, names in _TABLE["sizes"].items() for name in names}
_EACH = 2
"""Layers of each kind that are kept."""
_TRAINED, _VOCABULARY = 256, 128
_SPREAD = 0.125
"""Of matrices: with less, all logits of so narrow a model are alike."""
_AUTO = (AutoModelForImageTextToText, AutoModelForMultimodalLM)


def small_config(config: Any) -> PreTrainedConfig:
    """`config` cut to two layers of each kind that it has, and to small sizes, as small.toml lists them; what it does
    not list is as it was. Raises UsageError where that makes no config."""
    try:
        small: PreTrainedConfig = type(config).from_dict(_ConfigCut(config, _ids(config)).settings)
    except Exception as error:  # a class of the model's own may fail in any way
        raise UsageError(f"the config of {config.model_type} models cannot be cut: {one_line(error)}") from error
    return small


def build(config: Any, folder: Path, seed: int = 0) -> Any:
    """The model of a small `config` with random weights, saved in `folder`. Raises UsageError where there is none."""
    try:
        auto = next((each for each in _AUTO if _is_whole(config) and type(config) in each._model_mapping), None)
        auto = auto or (AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM)
        with undrawn():
            model = auto.from_config(config, dtype=torch.float32)
        initialise(model, seed)
        _spread(model, seed)
        model.save_pretrained(folder)
    except Exception as error:
        raise UsageError(f"no small {config.model_type} model can be built: {one_line(error)}") from error
    return model


def _is_whole(config: Any) -> bool:
    """Whether it has other parts than the text model."""
    return not config.is_encoder_decoder and config.get_text_config() is not config


def _spread(model: Any, seed: int) -> None:
    """Draw anew what is too close to zero to tell layers apart, and shift vectors a little, so that no two are alike."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for each in model.parameters():
            if not each.is_floating_point() or not each.numel():
                continue
            noise = torch.randn(each.shape, generator=generator)
            if each.ndim < 2:
                each.add_(noise, alpha=0.02)
            elif each.numel() > 1 and each.std() < _SPREAD / 2:
                each.copy_(noise * _SPREAD)
    model.tie_weights()


class _ConfigCut:
    """The `settings` of a config when it is cut; `ids` are the special tokens' new numbers."""

    def __init__(self, config: Any, ids: Mapping[int, int]) -> None:
        self.config, self.ids = config, ids
        self.old: dict[str, Any] = config.to_dict()
        parts = {name: each for name, each in vars(config).items() if isinstance(each, PreTrainedConfig)}
        self.settings = {name: value for name, value in self.old.items() if name not in parts}
        self.settings.pop("quantization_config", None)
        self.names = {
            **dict.fromkeys(("width", "heads"), None),
            **self.old,
            "width": self._common("hidden_size"),
            "heads": self._common("num_attention_heads"),
        }
        self._cut_layers()
        for name, value in self.settings.items():
            self.settings[name] = self._resized(name, value)
        self._cut_positions()
        for name, expression in _TABLE["families"].get(config.model_type, {}).items():
            self.settings[name] = evaluate(expression, self.settings)
        self.settings |= {name: _ConfigCut(part, ids).settings for name, part in parts.items()}

    def _common(self, name: str) -> Any:
        """A setting by the name that most families have for it."""
        value = self.old.get(self.config.attribute_map.get(name, name))
        return value if isinstance(value, int) else None

    def _resized(self, name: str, value: Any) -> Any:
        if isinstance(value, float) and ("drop" in name or "jitter" in name):
            return 0.0
        if name in ("dtype", "torch_dtype"):
            return "float32"
        if _is_id(name):
            return _mapped(value, self.ids)
        if name == "per_layer_config" and isinstance(value, dict):
            return {number: self._of_layer(each) for number, each in value.items()}
        if name not in _SIZES:
            return value
        if isinstance(value, list) and value and all(type(each) is int and each > 0 for each in value):
            size = self._size(name, min(value))
            return [size * each // min(value) for each in value]
        return self._size(name, value) if type(value) is int and value > 0 else value

    def _size(self, name: str, old: int) -> int:
        return int(evaluate(_SIZES[name], {**self.names, "old": old}))

    def _of_layer(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Of one layer: as much more than the other layers have as before."""
        made = dict(settings)
        for name, value in settings.items():
            base = self.old.get(name)
            if name in _SIZES and type(value) is int and type(base) is int and base > 0:
                made[name] = max(1, self._size(name, base) * value // base)
        return made

    def _cut_layers(self) -> None:
        """Keep the first layers of each kind; other stacks of layers, which have but one kind, their first ones."""
        main = self.config.attribute_map.get("num_hidden_layers", "num_hidden_layers")
        count = self.old.get(main)
        for name in _TABLE["layers"]["counts"]:
            if type(self.old.get(name)) is int:
                self.settings[name] = min(self.old[name], _EACH)
        if type(count) is not int:
            return
        kept: list[int] = []
        kinds: dict[str, int] = {}
        for layer in range(count):
            kind = repr(list(self._kind(layer, count)))
            kinds[kind] = kinds.get(kind, 0) + 1
            if kinds[kind] <= _EACH:
                kept.append(layer)
        self.settings[main] = len(kept)
        rows = _TABLE["layers"]
        for name, value in self.old.items():
            if isinstance(value, list) and name in rows["numbers"]:
                self.settings[name] = [new for new, layer in enumerate(kept) if layer in value]
            elif isinstance(value, list) and len(value) == count:
                self.settings[name] = [value[layer] for layer in kept]
            elif type(value) is int and name in rows["first"]:
                self.settings[name] = sum(layer < value for layer in kept)
            elif type(value) is int and name in rows["last"]:
                self.settings[name] = sum(layer >= count - value for layer in kept)
            elif name == "per_layer_config" and isinstance(value, dict):
                found = {int(number): each for number, each in value.items()}
                self.settings[name] = {new: found[layer] for new, layer in enumerate(kept) if layer in found}

    def _kind(self, layer: int, count: int) -> Iterator[Any]:
        rows = _TABLE["layers"]
        for name, value in self.old.items():
            if isinstance(value, list) and name in rows["numbers"]:
                yield layer in value
            elif isinstance(value, list) and len(value) == count:
                yield value[layer]
            elif type(value) is int and name in rows["first"]:
                yield layer < value
            elif type(value) is int and name in rows["last"]:
                yield layer >= count - value
            elif name == "per_layer_config" and isinstance(value, dict):
                yield {int(number): each for number, each in value.items()}.get(layer)

    def _cut_positions(self) -> None:
        """Rotary positions as they were, for a smaller head and with the same share of trained positions."""
        new, old = self._rotary(self.settings), self._rotary(self.old)
        if type(rotary := self.old.get("rotary_dim")) is int and old:
            self.settings["rotary_dim"] = max(2, rotary * new // old)
        for name in ("rope_parameters", "rope_scaling", "original_max_position_embeddings"):
            if self.settings.get(name):
                self.settings[name] = self._rope(name, self.settings[name], new / old if old else 1)

    def _rotary(self, settings: Mapping[str, Any]) -> int:
        """The size of a head that is turned by its position, or the part of it that scales with it."""
        width, heads = (
            settings.get(self.config.attribute_map.get(name, name)) or 1
            for name in ("hidden_size", "num_attention_heads")
        )
        return int(settings.get("qk_rope_head_dim") or settings.get("head_dim") or width // heads)

    def _rope(self, name: str, value: Any, share: float) -> Any:
        if isinstance(value, dict):
            return {key: self._rope(key, each, share) for key, each in value.items()}
        if name == "original_max_position_embeddings" and value:
            longest = self._common("max_position_embeddings") or value
            if "max_position_embeddings" in self.settings:
                self.settings["max_position_embeddings"] = max(512, _TRAINED * longest // int(value))
            return _TRAINED
        if name in ("long_factor", "short_factor"):
            return value[: int(len(value) * share)]
        if name == "mrope_section":
            sections = [int(each * share) for each in value]
            return [sections[0] + int(sum(value) * share) - sum(sections), *sections[1:]]
        return value


def _is_id(name: str) -> bool:
    return name.endswith(("token_id", "token_ids", "token_index", "words_ids"))


def _ids(config: Any) -> dict[int, int]:
    """New numbers of a config's special tokens: 1 ends a text and 0 fills it up, if these are not one; all others come
    from the end of the vocabulary."""
    made: dict[int, int] = {}
    ends, fills, others = [], [], []
    for name, value in _found_ids(config.to_dict()):
        (ends if name == "eos_token_id" else fills if name == "pad_token_id" else others).append(value)
    for chosen, new in ((ends, 1), (fills, 0)):
        if chosen:
            made.setdefault(chosen[0], new)
    for value in [*ends, *fills, *others]:
        made.setdefault(value, _VOCABULARY + 1 - max(2, len(made)))
    return made


def _found_ids(settings: Any, name: str = "") -> Iterator[tuple[str, int]]:
    if isinstance(settings, dict):
        for key, value in settings.items():
            yield from _found_ids(value, key)
    elif isinstance(settings, list):
        for value in settings:
            yield from _found_ids(value, name)
    elif type(settings) is int and settings >= 0 and _is_id(name):
        yield name, settings


def _mapped(value: Any, ids: Mapping[int, int]) -> Any:
    return [_mapped(each, ids) for each in value] if isinstance(value, list) else ids.get(value, value)
