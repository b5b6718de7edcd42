"""Recipe: a training run as the user described it, every value with its source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dsrun.recipe.flags import all_flags
from dsrun.recipe.parsed_value import COMMAND_LINE
from dsrun.recipe.spec import TrainSpec

DEFAULT = "default"


@dataclass(frozen=True)
class Recipe:
    """What was asked for.

    `hf` holds the given fields of Seq2SeqTrainingArguments only, by their names there. `sources` says for
    every option of ours and every given training argument "command line", "run.yaml:12", "args.json",
    "default", or the source given to `with_defaults`. `notices` are one-line remarks for stderr, `argv` the words
    of the command line.
    """

    spec: TrainSpec
    hf: dict[str, Any]
    sources: dict[str, str]
    notices: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()

    def given(self, name: str) -> bool:
        """Whether the flag of this name has a value from anywhere but dsrun's own default."""
        return self.sources.get(name, DEFAULT) != DEFAULT

    def value(self, name: str) -> Any:
        """The value of a flag of ours or of a training argument, its default when not given."""
        flag = all_flags()[name]
        return getattr(self.spec, flag.key) if flag.owner == "dsrun" else self.hf.get(flag.key, flag.default)

    def where(self, name: str) -> str:
        """How an error about this flag begins: `--zero`, or `run.yaml:12: zero`."""
        source = self.sources.get(name, DEFAULT)
        if source in (COMMAND_LINE, DEFAULT):
            return all_flags()[name].shown
        return f"{source}: {name}"


FLAGS = {"do_train": "train", "do_eval": "validation", "do_predict": "test"}


def phases(recipe: Recipe) -> frozenset[str]:
    """What to do: `train`, `validation`, `test`. Naming none of --do-train, --do-eval, --do-predict means training,
    and evaluating where there is validation data; either is left out where its flag says false."""
    asked = {phase for flag, phase in FLAGS.items() if recipe.hf.get(flag)}
    if not asked:
        refused = {phase for flag, phase in FLAGS.items() if recipe.hf.get(flag) is False}
        asked = {"train", "validation"} - refused
    return frozenset(asked | ({"validation"} if evaluates_while_training(recipe) else set()))


def evaluation_is_asked_for(recipe: Recipe) -> bool:
    """Whether the run cannot do without validation data."""
    return bool(recipe.hf.get("do_eval")) or evaluates_while_training(recipe)


def evaluates_while_training(recipe: Recipe) -> bool:
    """Whether flags ask for evaluation during training."""
    strategy = str(recipe.hf.get("eval_strategy", "no"))
    return (
        strategy != "no"
        or recipe.spec.early_stopping is not None
        or bool(recipe.hf.get("load_best_model_at_end"))
        or recipe.hf.get("save_strategy") == "best"
    )
