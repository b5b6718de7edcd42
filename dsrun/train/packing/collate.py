"""Rows of several samples as the tensors that a model keeps apart."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from dsrun.train.base.labels import IGNORED
from dsrun.train.data.collate import PaddingCollator
from dsrun.train.packing.encoder_decoder import ids_tensor, pair_inputs
from dsrun.train.packing.probe import ONE_ROW, PackingMethod, packed_inputs

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
