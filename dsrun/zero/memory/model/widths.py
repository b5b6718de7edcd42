"""An architecture from a model's tensors, and from its config.json what shapes cannot tell.

Tensors come first: they say what a config leaves to its class's defaults. Their names are those that transformers'
models share; where a family has others, the config's settings under their usual names count."""

import re
from collections.abc import Callable, Mapping
from functools import cached_property
from itertools import chain, groupby
from typing import Any

from dsrun.datafiles import patterns_beside, toml_beside
from dsrun.models.families import family_of
from dsrun.zero.memory.model.architecture import LayerBlock, LayerWeight, LayerWidths, ModelShapes, NormKind
from dsrun.zero.memory.model.shapes import ModelSettings

_TABLE = toml_beside(__file__, "names.toml")
NAMES: dict[str, list[str]] = _TABLE["settings"]
"""The names of a setting in a config."""
_PATTERNS = patterns_beside(__file__, "names.toml")
USUAL_HEAD = 64
"""Width of a head where nothing says it."""


def architecture_of(config: Mapping[str, Any], tensors: tuple[LayerWeight, ...]) -> ModelShapes:
    """The architecture of a decoder or encoder-decoder model; of one without `tensors`, what its config says.

    Raises UsageError for a config whose settings make no model, or that lacks what its tensors do not say."""
    family = family_of(str(config["model_type"]))
    crossed = any(_PATTERNS["cross"].search(each.name) for each in tensors)
    seq2seq = bool(config.get("is_encoder_decoder", crossed and any(_side(each) == "encoder" for each in tensors)))
    text = part(config, "decoder")
    decoder = _Side(text, tensors, "decoder" if seq2seq else "")
    encoder = _Side(part(config, "encoder"), tensors, "encoder") if seq2seq else None
    outside = [*decoder.outside, *(encoder.outside if encoder else ())]
    positions = [w.shape[0] for w in outside if _leaf_is("positions", w) and not _PATTERNS["senses"].search(w.name)]
    kind = str(config["model_type"])
    longest = max(positions) - family.unused_positions if positions else None
    relative = any("relative_attention_bias" in each.name for each in tensors)
    # The default of the families that have any: of encoder-decoders, and of those with learned positions.
    dropout = text.share(*NAMES["dropout"], default=0.1 if seq2seq or longest else 0.0)
    usual = dropout if kind in _TABLE["usual_dropout"]["as_others"] else 0.0
    return ModelShapes(
        family=kind, seq2seq=seq2seq, hidden=decoder.width, vocabulary=decoder.vocabulary,
        tied=not any(each.kind == "head" for each in tensors), blocks=layered(tensors),
        norm="t5" if relative else decoder.norm, decoder=decoder.stack(), encoder=encoder.stack() if encoder else None,
        positions=longest, relative_bias=relative,
        dropout=dropout, attention_dropout=text.share(*NAMES["attention_dropout"], default=usual),
    )  # fmt: skip


def part(config: Mapping[str, Any], side: str) -> ModelSettings:
    """The settings of one side, or of the part that reads text. Where they differ by layer, the largest."""
    chosen = config
    for name in (side, "text_config"):
        inner = chosen.get(name)
        chosen = inner if isinstance(inner, dict) else chosen
    return ModelSettings({name: _largest(value) for name, value in chosen.items()})


def _largest(value: Any) -> Any:
    counts = isinstance(value, list) and value and all(type(each) is int for each in value)
    return max(value) if counts else value


def leaf_of(name: str) -> str:
    """The last part of a tensor's name: that of its module, or its own where it is no weight of one."""
    return name.removesuffix(".weight").rpartition(".")[2]


def _leaf_is(kind: str, weight: LayerWeight) -> bool:
    """Whether the last part of a tensor's name is of the pattern called `kind`."""
    return _PATTERNS[kind].fullmatch(leaf_of(weight.name)) is not None


def _side(weight: LayerWeight) -> str:
    """encoder or decoder, as the path of a tensor has it; empty for what both share."""
    return next((each for each in weight.name.split(".") if each in ("encoder", "decoder")), "")


class _Side:
    """The tensors of one side: those of its layers, by their names within one, and those `outside`."""

    def __init__(self, config: ModelSettings, tensors: tuple[LayerWeight, ...], side: str) -> None:
        self.config, self.side = config, side
        self.prefix = side or "decoder"
        stacks: dict[str, dict[int, list[LayerWeight]]] = {}
        self.outside: list[LayerWeight] = []
        for each in tensors:
            if side and _side(each) not in ("", side):
                continue
            if found := _PATTERNS["layer"].fullmatch(each.name):
                inner = each._replace(name=found[3])
                stacks.setdefault(found[1], {}).setdefault(int(found[2]), []).append(inner)
            else:
                self.outside.append(each)
        # A model that sees or hears has other layers too, which are fewer or smaller.
        self.layers = max(stacks.values(), key=lambda each: sum(w.elements for w in chain(*each.values())), default={})

    @cached_property
    def inner(self) -> list[LayerWeight]:
        return [weight for layer in self.layers.values() for weight in layer]

    @cached_property
    def tables(self) -> list[LayerWeight]:
        """The tables of tokens; those of this side where it has its own."""
        tables = [each for each in self.outside if each.kind == "embedding" and not _leaf_is("positions", each)]
        return [each for each in tables if self.side and _side(each) == self.side] or tables

    @cached_property
    def width(self) -> int:
        """The residual width; the norms of a layer have it where no setting says it."""
        norms = (each for each in self.inner if each.kind == "vector" and _leaf_is("norm", each))
        widths = [each.shape[0] for each in norms if not _leaf_is("inner_norm", each)]
        return self.config.number(*NAMES["width"], default=widths[0] if widths else None)

    @cached_property
    def vocabulary(self) -> int:
        heads = [each.shape[0] for each in self.outside if each.kind == "head"]
        rows = heads or [each.shape[0] for each in self.tables]
        return max(rows) if rows else self.config.number(*NAMES["rows"])

    @cached_property
    def norm(self) -> NormKind:
        biased = any(_PATTERNS["norm"].fullmatch(each.name.removesuffix(".bias").rpartition(".")[2])
                     for each in self.inner if each.name.endswith(".bias"))  # fmt: skip
        return "layer" if biased or (self.inner and not self._norms) else "rms"

    @cached_property
    def _norms(self) -> int:
        """Norms of the layer that has most."""

        def counted(layer: list[LayerWeight]) -> int:
            vectors = [each for each in layer if each.kind == "vector" and each.name.endswith(".weight")]
            return sum(_leaf_is("norm", each) and not _leaf_is("inner_norm", each) for each in vectors)

        return max((counted(layer) for layer in self.layers.values()), default=0)

    def _most(self, kind: str, size: Callable[[LayerWeight], int], within: str = "") -> int:
        """The largest `size` among the layers' matrices of this kind of names; 0 without any."""
        found = (each for each in self.inner if len(each.shape) == 2 and _leaf_is(kind, each))
        return max((size(each) for each in found if re.search(within, each.name)), default=0)

    def _other(self, weight: LayerWeight) -> int:
        """The side of a matrix that is not the residual width, whichever comes first."""
        return weight.elements // self.width

    def stack(self) -> LayerWidths:
        config, width = self.config, self.width
        fused = self._most("fused", self._other)
        asked = self._most("query", _rows) or (self._most("out", self._other, within="att") if fused else 0)
        normed = min((each.shape[0] for each in self.inner if _leaf_is("head_norm", each)), default=0)
        size = config.number(*NAMES["head_size"], default=normed)
        heads = config.number(f"{self.prefix}_attention_heads", *NAMES["heads"], default=self._heads(asked, size))
        queries = asked or heads * (size or max(1, width // heads))
        grouped = config.number("num_key_value_heads", default=heads) * (queries // heads)
        keys = self._most("key", _rows) or ((fused - queries) // 2 if fused else queries if asked else grouped)
        cross = self.side == "decoder"
        experts, per_token, ffn = self._feed_forward()
        # Where both sides have layers of their own number, the plain names are the encoder's (T5, BART).
        layers = len(self.layers) or config.number(
            f"{self.prefix}_layers", f"num_{self.prefix}_layers", *NAMES["layers"], default=1
        )
        return LayerWidths(
            layers=layers, heads=heads, queries=queries, keys=keys, ffn=ffn,
            gated=any("gate" in each.name or "wi_1" in each.name for each in self.inner),
            norms=self._norms or (3 if cross else 2), cross=cross,
            query_norms=any(_leaf_is("head_norm", each) for each in self.inner),
            experts=experts, experts_per_token=per_token,
        )  # fmt: skip

    def _heads(self, queries: int, size: int) -> int:
        """Heads that no setting names: T5's have a column each in the table of position biases."""
        biases = [each.shape[1] for each in self.inner if "relative_attention_bias" in each.name]
        return max(biases, default=max(1, queries // (size or USUAL_HEAD)))

    def _feed_forward(self) -> tuple[int, int, int]:
        """Experts, those that a token is sent to, and the feed-forward width it goes through with the shared ones."""
        config = self.config
        dense = self._most("down", self._other, within="^(?!.*(att|expert))")
        dense = dense or config.number(f"{self.prefix}_ffn_dim", *NAMES["ffn"], default=4 * self.width)
        stacked = [each for each in self.inner if len(each.shape) == 3 and each.name.endswith("experts.down_proj")]
        experts = stacked[0].shape[0] if stacked else config.number(*NAMES["experts"], default=0, least=0)
        if not experts:
            return 0, 0, dense
        each = config.number(*NAMES["expert_ffn"], default=dense)
        each = stacked[0].elements // (experts * self.width) if stacked else each
        usual = _TABLE["usual_per_token"].get(self.config.plain("model_type", ""), 1)
        per_token = min(experts, config.number(*NAMES["per_token"], default=usual))
        shared = config.number(*NAMES["shared_experts"], default=0, least=0) * each
        shared += config.number("shared_expert_intermediate_size", default=0, least=0)
        shared = self._most("down", self._other, within="shared_expert") or shared
        return experts, per_token, per_token * each + shared


def _rows(weight: LayerWeight) -> int:
    return weight.shape[0]


def layered(tensors: tuple[LayerWeight, ...]) -> tuple[LayerBlock, ...]:
    """Tensors in their order, cut into layers where the first number in their names changes."""

    def layer(weight: LayerWeight) -> str:
        numbered = _PATTERNS["layer"].fullmatch(weight.name)
        return f"{numbered[1]}.{numbered[2]}" if numbered else weight.name.rpartition(".")[0]

    return tuple(LayerBlock(name, tuple(weights)) for name, weights in groupby(tensors, key=layer))
