"""What is asked of this room and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from datasets import Dataset

from dsrun.recipe.spec import TrainSpec
from dsrun.train.data.collate import Collator
from dsrun.train.data.rows.limits import Truncation
from dsrun.train.data.stream import RowStream
from dsrun.train.data.tokens.files import TokenBin

Rows = Dataset | TokenBin | RowStream


@dataclass(frozen=True)
class DataRequest:
    """What is to be prepared, for which model.

    `splits` are wanted where there is data for them; those in `required`, and train and test where wanted,
    must be there. `max_positions` is what the model's config says, None for no limit.
    """

    spec: TrainSpec
    task: Literal["seq2seq", "causal-lm"]
    model_type: str
    max_positions: int | None
    vocab_size: int
    seed: int = 42
    splits: frozenset[str] = frozenset({"train", "validation"})
    required: frozenset[str] = frozenset()
    predict_with_generate: bool = False


@dataclass(frozen=True)
class PreparedData:
    """Datasets ready for the collator, and what the user should know about them.

    Rows: {"input_ids", "labels"}, labels being -100 where nothing is learned; rows of validation and test
    that were made from pairs or conversations also hold "source_text" and "target_text".
    """

    train: Rows | None
    validation: Rows | None
    test: Rows | None
    truncation: dict[str, Truncation]
    notices: tuple[str, ...]
    origin: str
    collator: Collator
