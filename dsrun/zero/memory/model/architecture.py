"""ModelShapes: what the memory formulas need to know of a model; ParameterGroups: which of its parameters train."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Literal, NamedTuple

WeightKind = Literal["linear", "embedding", "vector", "experts", "head", "frozen"]
"""linear: a matrix that gets a LoRA adapter under "all-linear"; embedding: token or position table; vector: norm
weights and biases, which the Trainer keeps out of weight decay; experts: stacked matrices of a mixture of experts;
head: the output embedding, which peft leaves alone; frozen: computed positions that are never trained."""


class LayerWeight(NamedTuple):
    """One parameter tensor of a layer, with its shape in elements."""

    name: str
    shape: tuple[int, ...]
    kind: WeightKind

    @property
    def elements(self) -> int:
        return prod(self.shape)


class LayerBlock(NamedTuple):
    """The layer or module called `name`, with `weights` in the order of the model's parameters."""

    name: str
    weights: tuple[LayerWeight, ...]

    @property
    def elements(self) -> int:
        return sum(weight.elements for weight in self.weights)


class LayerWidths(NamedTuple):
    """The widths that decide what one side (encoder or decoder) keeps for the backward pass, in elements per token.

    `queries` = heads × head size, `keys` = key/value heads × head size. `ffn` is the width one token goes through:
    of a mixture of experts, that of all experts it is sent to. `gated`: the feed-forward part multiplies two
    projections (SwiGLU, gated GELU). `cross`: it has attention over the encoder's output. `norms` per layer."""

    layers: int
    heads: int
    queries: int
    keys: int
    ffn: int
    gated: bool
    norms: int
    cross: bool = False
    query_norms: bool = False
    experts: int = 0
    experts_per_token: int = 0


NormKind = Literal["rms", "t5", "layer"]


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelShapes:
    """A model's parameter tensors and widths, hashed as one object: a plan looks up hundreds of results by it.

    `blocks` hold every distinct tensor once, tied ones not twice. `hidden` is the residual width, `vocabulary` the
    number of logits per position. `positions` is the longest input the model's position table takes, None where
    positions are relative or rotary. `relative_bias`: attention bias is a learned table added to the scores (T5)."""

    family: str
    seq2seq: bool
    hidden: int
    vocabulary: int
    tied: bool
    blocks: tuple[LayerBlock, ...]
    decoder: LayerWidths
    encoder: LayerWidths | None = None
    norm: NormKind = "layer"
    positions: int | None = None
    relative_bias: bool = False
    dropout: float = 0.0
    attention_dropout: float = 0.0

    @cached_property
    def parameters(self) -> int:
        """All parameters, tied ones once."""
        return sum(block.elements for block in self.blocks)

    @cached_property
    def largest_layer(self) -> int:
        """Elements of the largest single layer: what ZeRO-3 gathers at once, at least."""
        return max(block.elements for block in self.blocks)

    @cached_property
    def largest(self) -> int:
        """Elements of the largest parameter."""
        return max(weight.elements for block in self.blocks for weight in block.weights)

    @cached_property
    def largest_linear(self) -> int:
        """Elements of the largest linear layer's weight; 0 where there is none."""
        return max((weight.elements for weight in self.tensors() if weight.kind == "linear"), default=0)

    @property
    def stacks(self) -> tuple[LayerWidths, ...]:
        return (self.decoder,) if self.encoder is None else (self.encoder, self.decoder)

    def tensors(self) -> Iterator[LayerWeight]:
        """Every parameter tensor in the model's own order."""
        for block in self.blocks:
            yield from block.weights


@dataclass(frozen=True, kw_only=True)
class ParameterGroups:
    """A model's tensors in elements, in the model's own order, split into what trains and what is frozen.

    `decayed` and `undecayed` are the Trainer's two parameter groups: matrices, and norm weights with biases."""

    decayed: tuple[int, ...]
    undecayed: tuple[int, ...]
    frozen: tuple[int, ...]
    adapters: bool = False

    @property
    def trained(self) -> tuple[int, ...]:
        return self.decayed + self.undecayed

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The optimizer's parameter groups that hold anything."""
        return tuple(group for group in (self.decayed, self.undecayed) if group)

    @property
    def parameters(self) -> int:
        """All elements, frozen ones and adapters included."""
        return sum(self.trained) + sum(self.frozen)

    @property
    def trainable(self) -> int:
        """Elements an optimizer updates."""
        return sum(self.trained)


def training(architecture: ModelShapes, rank: int | None, bits: int | None = None) -> ParameterGroups:
    """What trains of `architecture`; with a LoRA `rank`, adapters on every linear layer but the output embedding, whose
    weights are held in so many `bits`."""
    tensors = list(architecture.tensors())
    if rank is not None:
        frozen = tuple(_held(weight, bits) for weight in tensors)
        adapters = tuple(size for weight in tensors for size in adapter(weight, rank))
        return ParameterGroups(decayed=adapters, undecayed=(), frozen=frozen, adapters=True)
    return ParameterGroups(
        decayed=tuple(w.elements for w in tensors if w.kind not in ("vector", "frozen")),
        undecayed=tuple(w.elements for w in tensors if w.kind == "vector"),
        frozen=tuple(w.elements for w in tensors if w.kind == "frozen"),
    )


def _held(weight: LayerWeight, bits: int | None) -> int:
    """Elements of 16 bits that a frozen weight takes. bitsandbytes quantises linear layers but the output embedding: in
    4 bits (nf4) with an absolute maximum of 8 bits for each 64 weights, and one of 32 for each 256 of these (Dettmers
    et al. 2023, section 3); in 8 with one of 32 for each row."""
    if bits is None or weight.kind != "linear":
        return weight.elements
    scales = weight.elements // 128 + weight.elements // 8192 if bits == 4 else 2 * weight.shape[0]
    return weight.elements * bits // 16 + scales


def adapter(weight: LayerWeight, rank: int) -> Iterator[int]:
    """Elements of LoRA's A [rank, into] and B [out, rank] for a linear layer (Hu et al. 2021); nothing for others."""
    if weight.kind == "linear":
        out, into = weight.shape
        yield rank * into
        yield rank * out
