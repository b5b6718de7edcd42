"""Micro batches of rows that hold several samples, or of samples of like lengths, in an order that seed and epoch fix.

An epoch has as many optimizer steps as without packing, so a step has the global batch's samples on average. Samples
are shuffled, and grouped within windows: a window is computed when its first step is due, and none before the one
that a resumed run begins with. Ranks and micro batches only cut a step into slices; where they need another number of
rows, its samples are packed anew."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch

from dsrun.train.base.labels import IGNORED
from dsrun.train.data.batches import FILLER, BatchSplit, EpochSampler, MicroBatchRows, WithFiller
from dsrun.train.data.collate import PaddingCollator
from dsrun.train.packing.assign import allotted, equal_cost_steps, pack_pairs, pack_rows
from dsrun.train.packing.encoder_decoder import ids_tensor, pair_inputs
from dsrun.train.packing.probe import ONE_ROW, PackingMethod, packed_inputs

# Larger windows fill rows better and cost time at their first step: 10,000 samples take a tenth of a second.
WINDOW = 10_000
# Of samples grouped by length, at least: smaller windows would shuffle less than they sort.
WINDOW_BATCHES = 50

BatchKind = Literal["plain", "budget", "packed"]


@dataclass(frozen=True)
class BatchGrouping:
    """How samples become steps: `plain`, a global batch each; `budget`, samples of like lengths whose cost is about the
    same in each step; `packed`, rows of several samples.

    `per_step` is the number of rows in a packed step, and the least number of samples in a budget one. It follows from
    the data and the global batch alone, so that a step is the same on any number of ranks and in any micro batches."""

    kind: BatchKind
    global_batch: int
    per_step: int = 0

    def steps(self, samples: int, *, drop_last: bool) -> int:
        return samples // self.global_batch if drop_last else math.ceil(samples / self.global_batch)


@dataclass(eq=False)
class WindowSampler(EpochSampler):
    """Sample numbers, FILLER where there is none, or rows of these where packed. `lengths`: tokens [samples, sides]."""

    lengths: np.ndarray
    split: BatchSplit
    grouping: BatchGrouping

    def __post_init__(self) -> None:
        self.steps = self.grouping.steps(len(self.lengths), drop_last=self.drop_last)

    def __len__(self) -> int:
        """Micro batches per epoch and rank; the same on every rank, as ZeRO-3 and DDP need."""
        return self.steps * self.split.accumulation

    def __iter__(self) -> Iterator[list[Any]]:
        first, self.first = self.first, 0
        step, passed = divmod(first, self.split.accumulation)
        for samples in self._from(step):
            yield from self._slices(samples)[passed:]
            passed = 0

    def _from(self, first: int) -> Iterator[list[Any]]:
        """The steps of this epoch from step `first` on: lists of rows, or of samples."""
        order = np.arange(len(self.lengths))
        if self.shares is not None:
            order = self.shares.samples(self.seed, self.epoch, shuffle=True)
        order = order[np.random.default_rng((self.seed, self.epoch)).permutation(len(order))]
        size = max(WINDOW, WINDOW_BATCHES * self.grouping.global_batch)
        windows = np.array_split(order, max(1, round(len(order) / size)))
        counts = allotted(np.array([self.lengths[window].sum() for window in windows]), self.steps)
        ends = np.cumsum(counts)
        for number, (window, count) in enumerate(zip(windows, counts.tolist(), strict=True)):
            if ends[number] > first:
                yield from self._window(window, count, number)[max(0, first - int(ends[number]) + count) :]

    def _window(self, samples: np.ndarray, steps: int, number: int) -> list[list[Any]]:
        # The tag keeps these numbers apart from those of the epoch's order.
        rng = np.random.default_rng((self.seed, self.epoch, number, 1))
        if self.grouping.kind == "packed":
            size = self.grouping.per_step
            rows = self._rows(samples, steps * size, rng)
            grouped: list[list[Any]] = [rows[i : i + size] for i in range(0, len(rows), size)]
        else:
            groups = equal_cost_steps(self.lengths[samples], steps, least=self.grouping.per_step)
            grouped = [samples[group].tolist() for group in groups]
        cost = [self._widest(step) for step in grouped]
        # What needs most memory goes first, so that it runs out in the first step or never.
        begins = [int(np.argmax(cost))] if number == 0 else []
        return [grouped[i] for i in begins + [i for i in rng.permutation(steps).tolist() if i not in begins]]

    def _rows(self, samples: np.ndarray, count: int, rng: np.random.Generator | None = None) -> list[list[int]]:
        """Samples in `count` rows, rows of like width behind each other, as a batch is as wide as its widest."""
        lengths = self.lengths[samples]
        one, other = lengths[:, 0], lengths[:, -1]
        packed = pack_pairs(one, other, count) if lengths.shape[1] > 1 else pack_rows(one, count)
        order = range(count) if rng is None else rng.permutation(count)
        return sorted((samples[packed[i]].tolist() for i in order), key=self._width, reverse=True)

    def _width(self, row: Sequence[int]) -> int:
        return int(self.lengths[row].sum())

    def _widest(self, step: list[Any]) -> int:
        if self.grouping.kind == "packed":
            return max(map(self._width, step))
        return int(self.lengths[step].max(axis=0).sum()) * len(step)

    def _slices(self, step: list[Any]) -> list[list[Any]]:
        """This rank's micro batches of a step."""
        split = self.split
        if self.grouping.kind == "packed":
            if len(step) != split.global_batch:
                samples = np.concatenate(step)
                step = self._rows(samples, split.global_batch)
            starts = (i * split.round + split.rank * split.micro_batch for i in range(split.accumulation))
            slices = [step[start : start + split.micro_batch] for start in starts]
            return [rows + [[]] * (split.micro_batch - len(rows)) for rows in slices]
        parts = np.array_split(np.asarray(step), split.world_size * split.accumulation)
        return [part.tolist() or [FILLER] for part in parts[split.rank :: split.world_size]]


class PackedRows(WithFiller):
    """Micro batches of packed rows of a table; an empty row is filler."""

    def __getitems__(self, packed: list[list[int]]) -> MicroBatchRows:
        rows = [[self[i] for i in row or [FILLER]] for row in packed]
        return MicroBatchRows(rows, [i for row in packed for i in row])


TokenRow = dict[str, Any]


@dataclass(frozen=True)
class PackedCollator:
    """Joins the samples of each row, {"input_ids", "labels"}, and pads the rows to the width of the widest. The first
    label of each document is ignored, as no token of the same document comes before it."""

    collator: PaddingCollator
    method: PackingMethod

    def __call__(self, rows: Sequence[Sequence[TokenRow]]) -> dict[str, Any]:
        pad, multiple_of = self.collator.pad_id, self.collator.multiple_of
        if self.method == "pairs":
            return pair_inputs(rows, pad, self.collator.decoder_input_ids, multiple_of)
        documents = [[ids_tensor(sample["input_ids"]) for sample in row] for row in rows]
        inputs = packed_inputs(documents, self.method, pad_id=pad, multiple_of=multiple_of)
        labels = torch.full_like(inputs["input_ids"], IGNORED)
        samples = [sample for row in rows for sample in row]
        for sample, (row, start, stop) in zip(samples, self.spans(rows), strict=True):
            labels[row, start + 1 : stop] = ids_tensor(sample["labels"])[1:]
        return {**inputs, "labels": labels}

    def spans(self, rows: Sequence[Sequence[TokenRow]]) -> list[tuple[int, int, int]]:
        """Where the labels of each sample are in the batch: row, first position, and the one behind the last."""
        lengths = [[len(sample["labels"]) for sample in row] for row in rows]
        if self.method in ONE_ROW:
            lengths = [[length for row in lengths for length in row]]
        ends = [np.cumsum([0, *row]).tolist() for row in lengths]
        return [(row, start, stop) for row, borders in enumerate(ends) for start, stop in pairwise(borders)]
