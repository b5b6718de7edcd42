"""What a model card says of a run, with files and folders by their names alone: nobody else has this machine's."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsrun.demo.build_demo import DEMO_NAMES
from dsrun.recipe.mixture import specs_of
from dsrun.recipe.preflight.files import is_path
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.train.base.plan import TrainingPlan
from dsrun.train.data.data_request import PreparedData

_NOT_SCORES = ("seconds", "samples_per_second", "epoch")


@dataclass(frozen=True, kw_only=True)
class SplitScores:
    """The final metrics on a split, or on that of one set of a mixture."""

    split: str
    set: str
    values: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """What a card says. `metrics` are the final ones by split, without prefix; `name` is that of the run, and
    `repository` where the model is to be on the Hub, if anywhere; `parallel` reads "ZeRO-2 on 8 GPUs"."""

    plan: TrainingPlan
    data: PreparedData
    state: Any
    metrics: Mapping[str, Mapping[str, float]]
    tokenizer: Any
    parameters: int
    trainable: int
    parallel: str
    best: str | None
    name: str
    repository: str | None
    loader: str | None = None
    """The class that loads the model, where that is not the one of its task."""

    @property
    def spec(self) -> TrainSpec:
        return self.plan.recipe.spec

    @property
    def sets(self) -> dict[str, TrainSpec]:
        """What describes each set of a mixture, by its name; the whole data under ""."""
        return specs_of(self.spec)

    @property
    def base(self) -> str | None:
        """The Hub name of the model that was trained on from; None for one of this machine or random weights."""
        known = self.spec.model and not self.spec.from_scratch and self.plan.title not in DEMO_NAMES
        return self.plan.title if known and not is_path(self.plan.title) else None

    @property
    def pipeline(self) -> str:
        """The task as the Hub names it."""
        if self.plan.task == "causal-lm":
            return "text-generation"
        if all(each.source_lang and each.target_lang for each in self.sets.values()):
            return "translation"
        return "summarization" if self.spec.summary_column else "text2text-generation"

    @property
    def data_name(self) -> str:
        if self.spec.mix:
            return ", ".join(self.sets)
        if self.spec.dataset:
            return hub_dataset(self.spec) or name_of(self.spec.dataset)
        # Rows that a script has given have a name in the header alone.
        files = ", ".join(map(name_of, self.spec.train_file or self.spec.validation_file))
        return files or self.data.origin.rpartition(": ")[0]

    def scores(self) -> Iterator[SplitScores]:
        """All final metrics that are finite; those of a mixture's sets by themselves."""
        # The longest first: "wiki_loss" is of the set wiki, unless there is one wiki_loss.
        names = sorted(filter(None, self.sets), key=len, reverse=True)
        for split, metrics in self.metrics.items():
            found: dict[str, dict[str, float]] = {"": {}, **{name: {} for name in self.sets}}
            for metric, value in metrics.items():
                of_set = next((name for name in names if metric.startswith(f"{name}_")), "")
                short = metric.removeprefix(f"{of_set}_") if of_set else metric
                if short not in _NOT_SCORES and math.isfinite(float(value)):
                    found[of_set][short] = round(float(value), 4)
            yield from (SplitScores(split=split, set=name, values=values) for name, values in found.items() if values)


def hub_dataset(spec: TrainSpec) -> str | None:
    """The Hub name of the dataset, None for files of this machine."""
    return spec.dataset if spec.dataset and not is_path(spec.dataset) else None


def name_of(path: str) -> str:
    """The last part of a path."""
    found = Path(path).expanduser()
    return found.resolve().name if found.name in ("", "..") else found.name
