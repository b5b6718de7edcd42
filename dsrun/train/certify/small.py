"""The small model of an architecture: its config with two layers of each kind and small sizes, all else as it is, and
random weights."""

from collections import defaultdict
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
from dsrun.models.families import family_of
from dsrun.train.model.initial_weights import initialise, undrawn
from dsrun.train.model.load import evaluating, one_at_a_time

_TABLE = toml_beside(__file__)
_SIZES = {name: expression for expression, names in _TABLE["sizes"].items() for name in names}
_MARKS = {name: expression for expression, names in _TABLE["layers"].items() for name in names}
_OVERRIDES = "per_layer_config"
"""What single layers have otherwise, by their number."""
_EACH = 2
"""Layers of each kind that are kept."""
_POSITIONS, _VOCABULARY = 512, 128
_TRAINED = "original_max_position_embeddings"
_SPREAD = 0.125
"""Of matrices: with less, all logits of so narrow a model are alike."""
_WIDEST = 2
_AUTO = (AutoModelForImageTextToText, AutoModelForMultimodalLM)


def small_config(config: Any) -> PreTrainedConfig:
    """`config` cut to two layers of each kind that it has, and to small sizes, as small.toml lists them; what it does
    not list is as it was. Raises UsageError where that makes no config."""
    try:
        small: PreTrainedConfig = type(config).from_dict(_ConfigCut(config, _ids(config)).settings)
    except Exception as error:  # a class of the model's own may fail in any way
        raise UsageError(f"the config of {config.model_type} models cannot be cut: {one_line(error)}") from error
    return small


def build(config: Any, folder: Path, seed: int = 0, *, trust_remote_code: bool = False) -> Any:
    """The model of a small `config` with random weights, saved in `folder`. Raises UsageError where there is none."""
    try:
        with one_at_a_time(trust_remote_code), undrawn():
            model = auto_class(config).from_config(config, dtype=torch.float32, trust_remote_code=trust_remote_code)
        initialise(model, seed)
        _spread(model, seed)
        model.save_pretrained(folder)
    except Exception as error:
        raise UsageError(f"no small {config.model_type} model can be built: {one_line(error)}") from error
    return model


def auto_class(config: Any) -> Any:
    """What builds the model of a config, with all of its parts."""
    if config.is_encoder_decoder:
        return AutoModelForSeq2SeqLM
    has_parts = config.get_text_config() is not config
    whole = next((each for each in _AUTO if has_parts and type(config) in each._model_mapping), None)
    return whole or AutoModelForCausalLM


def _spread(model: Any, seed: int) -> None:
    """Draw anew what is too close to zero to tell layers apart, and shift vectors a little: no two are alike then."""
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
    # What T5's config keeps of its own `tie_word_embeddings: false`.
    scaled = getattr(model.config, "scale_decoder_outputs", True)
    if family_of(model.config.model_type).unties_when_loaded and not scaled:
        model.config.tie_word_embeddings = False
        head = model.get_output_embeddings()
        head.weight = torch.nn.Parameter(head.weight.detach().clone())
    _level(model)


def _level(model: Any) -> None:
    """Give the output embedding the size at which logits differ by about one; one that is the input's is only made
    smaller, as all else would be small beside it."""
    quarter = _vocabulary(model.config) // 4
    head, ids = model.get_output_embeddings(), torch.arange(quarter, 2 * quarter)[None]
    if head is None:
        return
    given = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    with torch.no_grad(), evaluating(model):
        spread = model(input_ids=ids, **given).logits.std()
        if spread > _WIDEST or head.weight is not model.get_input_embeddings().weight:
            head.weight /= spread


def _marks(name: str, value: Any, count: int) -> list[Any] | None:
    """What a setting says of each of so many layers; None where it says nothing of single layers."""
    if name in _MARKS and value is not None:
        return [evaluate(_MARKS[name], {"layer": layer, "value": value, "count": count}) for layer in range(count)]
    return value if isinstance(value, list) and len(value) == count else None


class _ConfigCut:
    """The `settings` of a config when it is cut; `ids` are the special tokens' new numbers."""

    def __init__(self, config: Any, ids: Mapping[int, int]) -> None:
        self.config, self.ids = config, ids
        self.old: dict[str, Any] = config.to_dict()
        self.count: int = getattr(config, "num_hidden_layers", None) or 0
        if own := self.old.get(_OVERRIDES):
            own = {int(number): each for number, each in own.items()}
            self.old[_OVERRIDES] = [own.get(layer) for layer in range(self.count)]
        parts = {name: each for name, each in vars(config).items() if isinstance(each, PreTrainedConfig)}
        common = {"width": self._common("hidden_size"), "heads": self._common("num_attention_heads")}
        # Names for expressions: None for what a config does not have.
        self.names = defaultdict[str, Any](lambda: None, self.old | common | {"min": min, "max": max})
        left_out = {"quantization_config", *parts}
        self.settings = {name: value for name, value in self._with_few_layers().items() if name not in left_out}
        self.settings = {name: self._resized(name, value) for name, value in self.settings.items()}
        self._cut_positions()
        for name, expression in _TABLE["families"].get(config.model_type, {}).items():
            self.settings[name] = evaluate(expression, self.settings)
        self.settings |= {name: _ConfigCut(part, ids).settings for name, part in parts.items()} | {"dtype": "float32"}

    def _common(self, name: str) -> Any:
        """A setting by the name that most families have for it."""
        value = self.old.get(self.config.attribute_map.get(name, name))
        return value if isinstance(value, int) else None

    def _resized(self, name: str, value: Any) -> Any:
        if isinstance(value, float) and ("drop" in name or "jitter" in name):
            return 0.0
        if _is_id(name):
            return _mapped(value, self.ids)
        if name == _OVERRIDES and value:
            resized = [{key: self._resized(key, own) for key, own in (each or {}).items()} for each in value]
            return {number: each for number, each in enumerate(resized) if each}
        if isinstance(value, list) and name in _SIZES:
            return [self._resized(name, each) for each in value]
        if type(value) is not int or value <= 0 or name not in _SIZES:
            return value
        return int(evaluate(_SIZES[name], self.names | {"old": value, "usual": self.old[name]}))

    def _with_few_layers(self) -> dict[str, Any]:
        """Of each kind of layers the first ones; of other stacks of layers, which have but one kind, too."""
        settings = dict(self.old)
        for name in _TABLE["counts"]["names"]:
            if type(settings.get(name)) is int:
                settings[name] = min(settings[name], _EACH)
        marked = {name: marks for name, value in self.old.items() if (marks := _marks(name, value, self.count))}
        kept: list[int] = []
        kinds: dict[str, int] = {}
        for layer in range(self.count):
            kind = repr([marks[layer] for marks in marked.values()])
            kinds[kind] = kinds.get(kind, 0) + 1
            if kinds[kind] <= _EACH:
                kept.append(layer)
        main = self.config.attribute_map.get("num_hidden_layers", "num_hidden_layers")
        if kept and main in settings:  # a class may count a list of its layers
            settings[main] = len(kept)
        for name, marks in marked.items():
            here = [marks[layer] for layer in kept]
            if isinstance(self.old[name], int):
                settings[name] = sum(here)
            else:
                settings[name] = [new for new, is_in in enumerate(here) if is_in] if name in _MARKS else here
        return settings

    def _cut_positions(self) -> None:
        """Rotary positions as they were, for a smaller head and with the same share of trained positions."""
        share = self._rotary(self.settings) / (self._rotary(self.old) or 1)
        for name in ("rope_parameters", "rope_scaling", _TRAINED):
            if self.settings.get(name):
                self.settings[name] = self._rope(name, self.settings[name], share)

    def _rotary(self, settings: Mapping[str, Any]) -> int:
        """The size of a head that is turned by its position, or the part of it that scales with it."""
        names = (self.config.attribute_map.get(name, name) for name in ("hidden_size", "num_attention_heads"))
        width, heads = (settings.get(name) or 1 for name in names)
        return int(settings.get("qk_rope_head_dim") or settings.get("head_dim") or width // heads)

    def _rope(self, name: str, value: Any, share: float) -> Any:
        if isinstance(value, dict):
            return {key: self._rope(key, each, share) for key, each in value.items()}
        if name == _TRAINED and value:
            if "max_position_embeddings" in self.settings:
                times = (self._common("max_position_embeddings") or value) / value
                self.settings["max_position_embeddings"] = max(_POSITIONS, int(_POSITIONS * times) // 2)
            return _POSITIONS // 2
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
    found = list(_found_ids(config.to_dict()))
    for role, new in (("eos_token_id", 1), ("pad_token_id", 0)):
        first = next((value for name, value in found if name == role), None)
        if first is not None:
            made.setdefault(first, new)
    low = len(made)
    for _, value in found:
        made.setdefault(value, _vocabulary(config) - 1 - len(made) + low)
    return made


def _vocabulary(config: Any) -> int:
    """Of the small model."""
    return min(_VOCABULARY, getattr(config.get_text_config(), "vocab_size", _VOCABULARY))


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
