"""What is asked of this room and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

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


@dataclass
class Counts:
    """What happened to rows: how many were read, cut, and left out, and why."""

    rows: int = 0
    cut: int = 0
    cut_source: int = 0
    cut_target: int = 0
    incomplete: int = 0
    no_loss: int = 0
    first_incomplete: str = ""
    first_no_loss: str = ""

    def add(self, other: dict[str, Any]) -> None:
        """Sum numbers; the first place that was seen stays."""
        for name, value in other.items():
            mine = getattr(self, name)
            setattr(self, name, mine + value if isinstance(mine, int) else mine or value)

    def notices(self, split: str, limit: int) -> list[str]:
        """What the user should know about rows that were left out."""
        said = []
        if self.incomplete:
            said.append(
                f"{split}: {self.incomplete:,} of {self.rows:,} rows lack a text and are left out "
                f"(the first: {self.first_incomplete})"
            )
        if self.no_loss:
            said.append(
                f"{split}: {self.no_loss:,} of {self.rows:,} rows have nothing to learn from within {limit:,} "
                f"tokens and are left out (the first: {self.first_no_loss})"
            )
        return said
