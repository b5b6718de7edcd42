"""Model FLOPs: what a model's mathematics needs for samples of given lengths, forward and backward.

Appendix B of the PaLM paper (Chowdhery et al. 2022, arXiv 2204.02311): a trained token costs 6·N + 12·L·H·Q·T FLOPs,
for N parameters, L layers, H heads of dimension Q and T tokens that attend to each other. Frozen weights have no
gradient of their own: 4·N. Recomputation and padding count for nothing, causal attention counts as if it computed the
whole square. N leaves out the table of input embeddings, unless it is tied to the output layer: a look-up multiplies
nothing."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

TokenCounts = tuple[int, int, int, int, int]
"""Of samples with a source and a target: the sums of source tokens, of target tokens, of the squares of either, and of
their products. A causal language model has targets only."""


class MatrixWeights(NamedTuple):
    """`weights` that each source token, or each target token, is multiplied with."""

    weights: float
    of_source: bool = False
    trained: bool = True


class AttentionShape(NamedTuple):
    """`width` is heads × head size."""

    layers: int
    width: int


@dataclass(frozen=True)
class ModelFlops:
    """FLOPs for one of each number in TokenCounts."""

    factors: tuple[float, float, float, float, float]

    def of(self, work: Sequence[int]) -> float:
        return float(sum(factor * count for factor, count in zip(self.factors, work, strict=True)))


def model_flops(
    matrices: Iterable[MatrixWeights], decoder: AttentionShape, encoder: AttentionShape | None = None
) -> ModelFlops:
    """Of a causal language model or, with an encoder, of one whose decoder attends to the source in each layer. The
    keys and values of that are matrices of the source."""
    source = target = 0.0
    for matrix in matrices:
        cost = (6 if matrix.trained else 4) * matrix.weights
        source, target = (source + cost, target) if matrix.of_source else (source, target + cost)
    own = 12 * decoder.layers * decoder.width
    if encoder is None:
        return ModelFlops((source, target, 0.0, own, 0.0))
    return ModelFlops((source, target, 12 * encoder.layers * encoder.width, own, own))


def work_of(lengths: Iterable[tuple[int, int]]) -> TokenCounts:
    """The sums for samples of (source, target) tokens."""
    sums = [0, 0, 0, 0, 0]
    for source, target in lengths:
        for i, each in enumerate((source, target, source * source, target * target, source * target)):
            sums[i] += each
    return sums[0], sums[1], sums[2], sums[3], sums[4]
