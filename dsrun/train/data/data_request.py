"""What is asked of the data, for which model, and what is answered: prepared rows, ready for the collator."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from datasets import Dataset, IterableDataset

from dsrun.errors import one_line
from dsrun.recipe.preflight.files import of_teacher
from dsrun.recipe.recipe import Recipe, evaluation_is_requested, phases
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.train.base.plan import LoadedPlugin, ModelTask
from dsrun.train.base.refusals import refusal
from dsrun.train.data.collate import PaddingCollator
from dsrun.train.data.counts import RowCounts
from dsrun.train.data.reading.sources import DataSources, TableSource
from dsrun.train.model.load import load_config

DataRows = Any
"""A datasets.Dataset, TokenBlocks, a RowStream or a DataMixture: the modules that make them need this one."""


@dataclass(frozen=True)
class DataRequest:
    """What is to be prepared, for which model. `splits` are wanted where there is data for them; those in `required`,
    and train and test where wanted, must be there, unless it `is_part` of a mixture. `sources` are the data, None for
    that which `spec` names. `max_positions` None: no limit."""

    spec: TrainSpec
    task: ModelTask
    model_type: str
    max_positions: int | None
    vocab_size: int
    splits: frozenset[str] = frozenset({"train", "validation"})
    required: frozenset[str] = frozenset()
    is_part: bool = False
    plugin: LoadedPlugin | None = None
    sources: DataSources | None = None

    @property
    def preference(self) -> bool:
        """Whether rows are two answers, of which the first is preferred."""
        return self.spec.task == "dpo"


@dataclass(frozen=True)
class PreparedData:
    """Datasets ready for the collator, and what the user should know about them. Rows: {"input_ids", "labels"}, labels
    being -100 where nothing is learned; those of validation and test may hold "source_text" and "target_text", those of
    preferences "rejected_ids" and "rejected_labels".
    `counts` are those of the rows of each split, "wiki train" in a mixture, as far as they are known, and `unread` its
    columns that nothing looks at.
    `train_fingerprint` differs where the training rows, their order or their tokens do; None: not known."""

    train: DataRows | None
    validation: DataRows | None
    test: DataRows | None
    notices: tuple[str, ...]
    origin: str
    collator: PaddingCollator
    train_fingerprint: str | None = None
    counts: Mapping[str, RowCounts] = field(default_factory=dict)
    unread: Mapping[str, list[str]] = field(default_factory=dict)


def data_request(
    recipe: Recipe,
    config: Any,
    task: ModelTask,
    *,
    tokens: int,
    plugin: LoadedPlugin | None,
    sources: DataSources | None = None,
) -> DataRequest:
    """What is asked of the data; `dsrun prepare` asks for the same, so both find the same cache. A teacher reads it,
    too."""
    text, spec = config.get_text_config(), recipe.spec
    readers = [text, load_config(of_teacher(spec)).get_text_config()] if spec.task == "distill" else [text]
    known = [getattr(each, "max_position_embeddings", None) or getattr(each, "n_positions", None) for each in readers]
    return DataRequest(
        spec=spec,
        task=task,
        model_type=config.model_type,
        max_positions=min(filter(None, known), default=None),
        vocab_size=max(text.vocab_size, tokens),
        splits=phases(recipe),
        required=frozenset({"validation"}) if evaluation_is_requested(recipe) else frozenset(),
        plugin=plugin,
        sources=sources,
    )


def given_sources(rows: Mapping[str, Any]) -> DataSources | None:
    """The rows of a script in place of those of files; None where there are none."""
    if not rows:
        return None
    return DataSources("given rows", {split: _table(split, each) for split, each in rows.items()}, [])


def _table(split: str, rows: Any) -> TableSource:
    try:
        table = rows if isinstance(rows, Dataset | IterableDataset) else Dataset.from_list(list(rows))
    except (TypeError, AttributeError, ValueError) as error:
        raise refusal("source.not_rows", split=split, why=one_line(error)) from error
    return TableSource.of(table, f"{split} rows")
