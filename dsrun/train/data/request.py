"""What a run asks of its data and what it gets: request, prepared rows, and their collator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from datasets import Dataset

from dsrun.recipe.spec import TrainSpec
from dsrun.train.data.rows.limits import Truncation
from dsrun.train.data.stream import RowStream
from dsrun.train.data.tokens.files import TokenBin
from dsrun.train.data.tokens.tokenise import IGNORED


@dataclass
class Collator:
    """Pads rows {"input_ids", "labels"} on the right; other keys are left out.

    Gives int64 tensors: input_ids [batch, source], attention_mask likewise, labels [batch, target] with -100 where
    there is padding. Padding is marked by position and never by id, so a tokenizer whose padding is its end token still
    learns to end.

    For seq2seq set `model` after it is built: decoder_input_ids [batch, target] then come from the labels.

    `length` and `target_length` pad to a fixed size (--pad-to-max-length); otherwise to the longest of the batch,
    rounded up to `multiple_of` (8 fills the tensor cores of a GPU; on a CPU it would be waste).

    `max_target_length` is not used here: it is what generation in evaluation should be bounded by.
    """

    pad_id: int
    seq2seq: bool
    multiple_of: int = 1
    length: int | None = None
    target_length: int | None = None
    max_target_length: int | None = None
    model: Any = None

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        inputs = [_array(row["input_ids"]) for row in rows]
        labels = [_array(row["labels"]) for row in rows]
        width = self._width(inputs, self.length)
        batch = {
            "input_ids": _padded(inputs, width, self.pad_id),
            "attention_mask": _padded([np.ones_like(ids) for ids in inputs], width, 0),
            "labels": _padded(labels, self._width(labels, self.target_length) if self.seq2seq else width, IGNORED),
        }
        if self.seq2seq and self.model is not None:
            batch["decoder_input_ids"] = self._decoder_input_ids(self._shiftable(batch["labels"]))
        return batch

    def _decoder_input_ids(self, labels: torch.Tensor) -> torch.Tensor:
        """What the decoder reads to write `labels`: [batch, target] both.

        M2M100 (NLLB) and Blenderbot have no method for it (transformers 5.23): their forward shifts labels by one place
        itself, but the loss is not left to their forward. They begin with decoder_start_token_id.
        """
        if hasattr(self.model, "prepare_decoder_input_ids_from_labels"):
            return self.model.prepare_decoder_input_ids_from_labels(labels=labels)
        start = labels.new_full((len(labels), 1), self.model.config.decoder_start_token_id)
        return torch.cat([start, labels[:, :-1].masked_fill(labels[:, :-1] == IGNORED, self.pad_id)], dim=1)

    def _width(self, arrays: Sequence[np.ndarray], fixed: int | None) -> int:
        longest = max(len(array) for array in arrays)
        if fixed is not None:
            return max(fixed, longest)
        return -(-longest // self.multiple_of) * self.multiple_of

    def _shiftable(self, labels: torch.Tensor) -> torch.Tensor:
        """Labels whose rows all hold a token.

        mBART's shift_tokens_right fetches each row's last token and indexes with -1 where all labels are ignored, as in
        the filler rows of a short batch. What such a row decodes does not matter, as nothing in it is learned.
        """
        empty = (labels == IGNORED).all(dim=1)
        if not empty.any():
            return labels
        labels = labels.clone()
        labels[empty, 0] = 0 if self.pad_id != 0 else 1
        return labels


def _array(values: Any) -> np.ndarray:
    return np.asarray(values, dtype=np.int64)


def _padded(arrays: Sequence[np.ndarray], width: int, fill: int) -> torch.Tensor:
    out = np.full((len(arrays), width), fill, dtype=np.int64)
    for row, array in zip(out, arrays, strict=True):
        row[: len(array)] = array
    return torch.from_numpy(out)


Rows = Dataset | TokenBin | RowStream


@dataclass(frozen=True)
class DataRequest:
    """What is to be prepared, for which model.

    `splits` are wanted where there is data for them; those in `required`, and train and test where wanted, must be
    there. `max_positions` is what the model's config says, None for no limit.
    """

    spec: TrainSpec
    task: Literal["seq2seq", "causal-lm"]
    model_type: str
    max_positions: int | None
    vocab_size: int
    splits: frozenset[str] = frozenset({"train", "validation"})
    required: frozenset[str] = frozenset()


@dataclass(frozen=True)
class PreparedData:
    """Datasets ready for the collator, and what the user should know about them.

    Rows: {"input_ids", "labels"}, labels being -100 where nothing is learned; rows of validation and test that were
    made from pairs or conversations also hold "source_text" and "target_text".
    """

    train: Rows | None
    validation: Rows | None
    test: Rows | None
    truncation: dict[str, Truncation]
    notices: tuple[str, ...]
    origin: str
    collator: Collator
