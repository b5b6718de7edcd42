"""What a script brings along itself, in place of what a recipe names: model, tokenizer, rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from datasets import Dataset, IterableDataset

from dsrun.errors import UsageError, one_line
from dsrun.recipe.recipe import has_data
from dsrun.recipe.spec import TrainSpec
from dsrun.train.data.reading.sources import Sources, TableSource


@dataclass(frozen=True)
class Given:
    """`model` builds the model of `config`, or returns it where it `is_built` already; `rows` are those of each split,
    a sequence or a dataset; `command` is the command line of the script. What is None or empty comes from the recipe.
    """

    config: Any = None
    model: Callable[[], Any] | None = None
    tokenizer: Any = None
    rows: Mapping[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    is_built: bool = False

    def check(self, spec: TrainSpec) -> None:
        """Raise UsageError for settings that do not go with what is given."""
        if self.rows and has_data(spec):
            raise UsageError("Trainer has rows, and its settings name data too", fix="leave one out")
        if self.is_built and spec.task == "dpo" and not spec.lora:
            raise UsageError(
                "task='dpo' needs the model twice, once to be trained and once as the reference",
                fix="give Trainer a function that builds it, with its config=, or lora=RANK",
            )

    def sources(self) -> Sources | None:
        """The rows in place of those of files; None where there are none."""
        if not self.rows:
            return None
        return Sources("given rows", {split: _table(split, rows) for split, rows in self.rows.items()}, [])


NOTHING = Given()


def _table(split: str, rows: Any) -> TableSource:
    where = f"{split} rows"
    if isinstance(rows, Dataset | IterableDataset):
        return TableSource(rows, where)
    try:
        return TableSource(Dataset.from_list(list(rows)), where)
    except (TypeError, AttributeError, ValueError) as error:
        raise UsageError(
            f"{split}= of Trainer is not a sequence of rows: {one_line(error)}",
            fix="dictionaries of the same columns, or a datasets.Dataset",
        ) from error
