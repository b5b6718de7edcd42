"""Which samples each rank sees in which micro batch.

The global batch of every optimizer step is fixed by the seed and the epoch alone; ranks and micro batches only cut it
into slices. So 1 rank and 8 ranks, 1 and 16 accumulation steps train on the same samples in the same order. Where the
last global batch of an epoch is short, it is filled with *filler*: samples whose labels are all ignored. They weigh
nothing, so no sample is lost (as with drop_last) or counted twice (as with Accelerate's even_batches)."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from dsrun.errors import UsageError
from dsrun.train.base.labels import IGNORED
from dsrun.train.data.stream import RowReader, RowStream

FILLER = -1
FILLER_LENGTH = 2

# Global batches sorted together when grouping by length: more saves more padding and shuffles less.
GROUPED_BATCHES = 50


@dataclass(frozen=True)
class BatchSplit:
    """How a global batch is cut: `rank` of `world_size` takes micro batches of `micro_batch` samples; `sharing`
    neighbouring ranks take the same (sequence parallelism)."""

    micro_batch: int
    rank: int
    world_size: int
    accumulation: int = 1
    sharing: int = 1

    @property
    def round(self) -> int:
        """Samples that all ranks together take in one micro step."""
        return self.micro_batch * self.world_size // self.sharing

    @property
    def start(self) -> int:
        """The place of this rank's first sample in a round."""
        return self.rank // self.sharing * self.micro_batch

    @property
    def global_batch(self) -> int:
        return self.round * self.accumulation


@dataclass(frozen=True)
class MicroBatchRows:
    """The rows of one micro batch, each a list of samples where packed, and the ids of the samples that are not
    filler: row numbers of a table, running numbers within the epoch of a stream. A stream knows the epoch itself, and
    after the last rows of a global batch the place to go on from."""

    rows: list[Any]
    ids: list[int]
    epoch: int | None = None
    after: dict[str, Any] | None = None


@dataclass(frozen=True)
class MixtureShares:
    """What an epoch takes of several sets whose samples are numbered on from set to set: of set i, which has sizes[i]
    samples, counts[i], as many in all as all sets have.

    A set is gone through in whole passes, each in an order of its own, and an epoch goes on where the last one stopped.
    So any two samples of a set have been taken equally often, or one of them once more."""

    sizes: tuple[int, ...]
    counts: tuple[int, ...]

    def samples(self, seed: int, epoch: int, *, shuffle: bool) -> np.ndarray:
        """The samples of an epoch, set after set."""
        parts, first = [], 0
        for number, (size, count) in enumerate(zip(self.sizes, self.counts, strict=True), 1):
            start, stop = epoch * count, (epoch + 1) * count
            for turn in range(start // size, math.ceil(stop / size)):
                # The set's number, never 0: NumPy takes (seed, turn, 0) for (seed, turn), the seed of an epoch's order.
                rng = np.random.default_rng((seed, turn, number))
                order = rng.permutation(size) if shuffle else np.arange(size)
                parts.append(first + order[max(0, start - turn * size) : stop - turn * size])
            first += size
        return np.concatenate(parts)


@dataclass(eq=False, kw_only=True)
class EpochSampler(Sampler):
    """Yields this rank's micro batches of an epoch; with `shares` some samples come more often than others. The next
    pass begins with micro batch `first`, later ones with 0."""

    seed: int = 0
    drop_last: bool = False
    shares: MixtureShares | None = None
    epoch: int = field(default=0, init=False)
    first: int = field(default=0, init=False)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


@dataclass(eq=False)
class GlobalBatchSampler(EpochSampler):
    """Lists of sample indices; FILLER stands where there is no sample. `lengths` (tokens per sample) turns on grouping
    by length."""

    samples: int
    split: BatchSplit
    _: KW_ONLY
    shuffle: bool = True
    lengths: np.ndarray | None = None

    def __len__(self) -> int:
        """Micro batches per epoch and rank; the same on every rank, as ZeRO-3 and DDP need."""
        full, rest = divmod(self.samples, self.split.global_batch)
        return full * self.split.accumulation + (0 if self.drop_last else math.ceil(rest / self.split.round))

    def __iter__(self) -> Iterator[list[int]]:
        order = self._order()
        first, self.first = self.first, 0
        for i in range(first, len(self)):
            start = i * self.split.round + self.split.start
            batch = order[start : start + self.split.micro_batch].tolist()
            yield batch + [FILLER] * (self.split.micro_batch - len(batch))

    def _order(self) -> np.ndarray:
        chosen = np.arange(self.samples)
        if self.shares is not None:
            chosen = self.shares.samples(self.seed, self.epoch, shuffle=self.shuffle)
        if not self.shuffle:
            return chosen
        rng = np.random.default_rng((self.seed, self.epoch))
        order = chosen[rng.permutation(self.samples)]
        return order if self.lengths is None else self._grouped(order, self.lengths, rng)

    def _grouped(self, order: np.ndarray, lengths: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        size = self.split.global_batch
        pool = size * GROUPED_BATCHES
        batches: list[np.ndarray] = []
        for start in range(0, len(order), pool):
            chunk = order[start : start + pool]
            chunk = chunk[np.argsort(-lengths[chunk], kind="stable")]
            batches += [chunk[i : i + size] for i in range(0, len(chunk), size)]
        whole = [batch for batch in batches if len(batch) == size]
        short = [batch for batch in batches if len(batch) < size]
        # The longest samples go first, so that memory runs out in the first step or never.
        longest = max(range(len(whole)), key=lambda i: lengths[whole[i][0]], default=None)
        first = [] if longest is None else [whole.pop(longest)]
        return np.concatenate(first + [whole[i] for i in rng.permutation(len(whole))] + short)


class WithFiller(Dataset):
    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return filler_like(self.rows[0]) if index == FILLER else self.rows[index]


def filler_like(row: dict[str, Any]) -> dict[str, Any]:
    """A row of which nothing is learned, short, as a batch may hold nothing else."""
    tokens = {name: values[:FILLER_LENGTH] for name, values in row.items() if name.endswith(("_ids", "labels"))}
    ignored = {name: [IGNORED] * len(values) for name, values in tokens.items() if name.endswith("labels")}
    return {**row, **tokens, **ignored}


class TrainingRows(WithFiller):
    def __getitems__(self, indices: list[int]) -> MicroBatchRows:
        return MicroBatchRows([self[index] for index in indices], [index for index in indices if index != FILLER])


class StreamOfBatches(IterableDataset):
    """Cuts a stream of rows into this rank's micro batches, epoch after epoch without an end. Every rank reads the
    whole stream and keeps its share, which gives the same global batches at any world size. Begins at `place`, the
    `after` of a micro batch taken before; then leaves out `skipped` micro batches, which it must read."""

    def __init__(self, rows: RowStream, split: BatchSplit) -> None:
        self.rows = rows
        self.split = split
        self.place: dict[str, Any] | None = None
        self.skipped = 0

    def __iter__(self) -> Iterator[MicroBatchRows]:
        return itertools.islice(self._epochs(), self.skipped, None)

    def _epochs(self) -> Iterator[MicroBatchRows]:
        place = self.place or {"epoch": 0, "reader": None}
        epoch, state = place["epoch"], place["reader"]
        while True:
            reader = self.rows.start(state)
            begun = reader.count
            yield from self._epoch(epoch, reader)
            if reader.count == begun == 0:
                raise UsageError("the streamed training data gave no row in a whole pass")
            epoch, state = epoch + 1, None

    def _epoch(self, epoch: int, reader: RowReader) -> Iterator[MicroBatchRows]:
        filler: dict[str, Any] = {}
        size = self.split.micro_batch
        while True:
            for step in range(self.split.accumulation):
                first = reader.count
                rows = list(itertools.islice(reader, self.split.round))
                if rows:
                    filler = filler_like(rows[0])
                elif step == 0:
                    return
                ends = step == self.split.accumulation - 1
                after = {"epoch": epoch, "reader": reader.state()} if ends else None
                # This rank's part of a round of all ranks.
                mine = rows[self.split.start : self.split.start + size]
                ids = [first + self.split.start + k for k in range(len(mine))]
                yield MicroBatchRows(mine + [filler] * (size - len(mine)), ids, epoch, after)


class BatchLoader(DataLoader):
    def set_epoch(self, epoch: int) -> None:
        for part in (self.dataset, self.batch_sampler):
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)
