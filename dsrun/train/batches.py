"""Which samples each rank sees in which micro batch.

The global batch of every optimizer step is fixed by the seed and the epoch alone; ranks and micro batches only cut it
into slices. So 1 rank and 8 ranks, 1 and 16 accumulation steps train on the same samples in the same order. Where
the last global batch of an epoch is short, it is filled with *filler*: samples whose labels are all ignored. They
weigh nothing, so no sample is lost (as with drop_last) or counted twice (as with Accelerate's even_batches).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

IGNORED = -100
FILLER = -1

# Global batches sorted together when grouping by length: more saves more padding and shuffles less.
GROUPED_BATCHES = 50


@dataclass(frozen=True)
class Split:
    """How a global batch is cut: `rank` of `world_size` takes micro batches of `micro_batch` samples."""

    micro_batch: int
    rank: int
    world_size: int
    accumulation: int = 1

    @property
    def round(self) -> int:
        """Samples that all ranks together take in one micro step."""
        return self.micro_batch * self.world_size

    @property
    def global_batch(self) -> int:
        return self.round * self.accumulation


class GlobalBatchSampler(Sampler):
    """Yields this rank's micro batches as lists of sample indices; FILLER stands where there is no sample.

    `lengths` (tokens per sample) turns on grouping: global batches then hold samples of similar length.
    """

    def __init__(
        self,
        samples: int,
        split: Split,
        *,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        lengths: Sequence[int] | None = None,
    ) -> None:
        self.samples = samples
        self.split = split
        self.seed = seed
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.lengths = None if lengths is None else np.asarray(lengths)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        """Micro batches per epoch and rank; the same on every rank, as ZeRO-3 and DDP need."""
        full, rest = divmod(self.samples, self.split.global_batch)
        if rest and self.drop_last:
            return full * self.split.accumulation
        return full * self.split.accumulation + math.ceil(rest / self.split.round)

    def __iter__(self) -> Iterator[list[int]]:
        order = self._order()
        for i in range(len(self)):
            start = i * self.split.round + self.split.rank * self.split.micro_batch
            batch = order[start : start + self.split.micro_batch].tolist()
            yield batch + [FILLER] * (self.split.micro_batch - len(batch))

    def _order(self) -> np.ndarray:
        if not self.shuffle:
            return np.arange(self.samples)
        rng = np.random.default_rng((self.seed, self.epoch))
        order = rng.permutation(self.samples)
        return order if self.lengths is None else self._grouped(order, rng)

    def _grouped(self, order: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        size = self.split.global_batch
        pool = size * GROUPED_BATCHES
        batches: list[np.ndarray] = []
        for start in range(0, len(order), pool):
            chunk = order[start : start + pool]
            chunk = chunk[np.argsort(-self.lengths[chunk], kind="stable")]
            batches += [chunk[i : i + size] for i in range(0, len(chunk), size)]
        whole = [batch for batch in batches if len(batch) == size]
        short = [batch for batch in batches if len(batch) < size]
        # The longest samples go first, so that memory runs out in the first step or never.
        longest = max(range(len(whole)), key=lambda i: self.lengths[whole[i][0]], default=None)
        first = [] if longest is None else [whole.pop(longest)]
        return np.concatenate(first + [whole[i] for i in rng.permutation(len(whole))] + short)


class WithFiller(Dataset):
    """A map-style dataset that answers index FILLER with a sample that adds nothing to the loss."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index != FILLER:
            return self.rows[index]
        return filler_like(self.rows[0])


def filler_like(row: dict[str, Any]) -> dict[str, Any]:
    """A copy of `row` with all labels ignored."""
    return {**row, "labels": [IGNORED] * len(row["labels"])}


class StreamOfBatches(IterableDataset):
    """Cuts a stream of rows into this rank's micro batches.

    Every rank reads the whole stream and keeps its share, which needs no agreement between ranks and gives the same
    global batches at any world size.
    """

    def __init__(self, rows: Any, split: Split) -> None:
        self.rows = rows
        self.split = split

    def set_epoch(self, epoch: int) -> None:
        if hasattr(self.rows, "set_epoch"):
            self.rows.set_epoch(epoch)

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        taken: list[dict[str, Any]] = []
        for row in self.rows:
            taken.append(row)
            if len(taken) == self.split.round:
                yield self._share(taken)
                taken = []
        if taken:
            yield self._share(taken + [filler_like(taken[0])] * (self.split.round - len(taken)))

    def _share(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        start = self.split.rank * self.split.micro_batch
        return rows[start : start + self.split.micro_batch]


class BatchLoader(DataLoader):
    """A DataLoader of ready micro batches that starts at any micro batch without reading what it skips."""

    def set_epoch(self, epoch: int) -> None:
        for part in (self.dataset, self.batch_sampler):
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)


def seed_worker(worker_id: int) -> None:
    """Give each loader process its own NumPy and `random` state; torch has seeded itself already."""
    import random

    seed = torch.initial_seed() % 2**32
    random.seed(seed)
    np.random.seed(seed)
