"""Which parameters train: all of them, or LoRA adapters beside frozen ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dsrun.zero.memory.model.architecture import Architecture, Weight


@dataclass(frozen=True, kw_only=True)
class Training:
    """A model's tensors in elements, in the model's own order, split into what trains and what is frozen.

    `decayed` and `undecayed` are the Trainer's two parameter groups: matrices, and norm weights with biases.
    """

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


def training(architecture: Architecture, rank: int | None) -> Training:
    """What trains of `architecture`; with a LoRA `rank`, adapters on every linear layer but the output embedding."""
    tensors = list(architecture.tensors())
    if rank is not None:
        frozen = tuple(weight.elements for weight in tensors)
        adapters = tuple(size for weight in tensors for size in adapter(weight, rank))
        return Training(decayed=adapters, undecayed=(), frozen=frozen, adapters=True)
    return Training(
        decayed=tuple(w.elements for w in tensors if w.kind not in ("vector", "frozen")),
        undecayed=tuple(w.elements for w in tensors if w.kind == "vector"),
        frozen=tuple(w.elements for w in tensors if w.kind == "frozen"),
    )


def adapter(weight: Weight, rank: int) -> Iterator[int]:
    """Elements of LoRA's A [rank, into] and B [out, rank] for a linear layer (Hu et al. 2021); nothing for others."""
    if weight.kind == "linear":
        out, into = weight.shape
        yield rank * into
        yield rank * out
