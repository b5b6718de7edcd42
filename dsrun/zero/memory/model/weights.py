"""The parts that hand-written shapes are made of, with the kinds and order of transformers' modules."""

from collections.abc import Iterable

from dsrun.models.families import family_of
from dsrun.zero.memory.model.architecture import LayerWeight
from dsrun.zero.memory.model.settings import ModelSettings


def linear(name: str, out: int, into: int, *, bias: bool = False) -> list[LayerWeight]:
    """A linear layer's matrix of [out, into] and, with `bias`, its vector."""
    weights = [LayerWeight(f"{name}.weight", (out, into), "linear")]
    return [*weights, LayerWeight(f"{name}.bias", (out,), "vector")] if bias else weights


def linears(names: Iterable[str], out: int, into: int, *, bias: bool = False) -> list[LayerWeight]:
    return [weight for name in names for weight in linear(name, out, into, bias=bias)]


def norm(name: str, width: int, *, bias: bool = False) -> list[LayerWeight]:
    """A norm's scale and, with `bias` (LayerNorm), its shift."""
    weights = [LayerWeight(f"{name}.weight", (width,), "vector")]
    return [*weights, LayerWeight(f"{name}.bias", (width,), "vector")] if bias else weights


def table_weight(name: str, rows: int, width: int) -> list[LayerWeight]:
    return [LayerWeight(f"{name}.weight", (rows, width), "embedding")]


def under(name: str, weights: Iterable[LayerWeight]) -> list[LayerWeight]:
    """The tensors of a module called `name`."""
    return [weight._replace(name=f"{name}.{weight.name}") for weight in weights]


def repeated(name: str, layers: Iterable[int], weights: Iterable[LayerWeight]) -> list[LayerWeight]:
    """Equal layers, by their numbers."""
    each = list(weights)
    return [weight for layer in layers for weight in under(f"{name}.{layer}", each)]


def head(config: ModelSettings, rows: int, width: int) -> list[LayerWeight]:
    """An output embedding of its own, unless the config or the family's default ties it."""
    if config.switch("tie_word_embeddings", family_of(config.word("model_type", "")).ties_embeddings):
        return []
    return [LayerWeight("lm_head.weight", (rows, width), "head")]
