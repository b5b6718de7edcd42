"""Recipe: a training run as the user described it, every value with its source; and what is wrong with it by itself.

No file, model, GPU or world size is looked at here. What each check says, and when it holds, is in checks.toml."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, NamedTuple

from dsrun.datafiles import evaluate, toml_beside
from dsrun.engine_options import EngineOptions
from dsrun.errors import UsageError
from dsrun.options import key_of
from dsrun.recipe.flags import ZERO_STAGE, all_flags, hf_flags, own_flags, shown_value
from dsrun.recipe.parsed_value import COMMAND_LINE, RejectedValue, config_values, pattern_and_rate, rope_settings
from dsrun.recipe.recipe_spec import TrainSpec

DEFAULT = "default"
OWN_GROUPS = ("galore", "apollo", "lomo", "adalomo", "muon")
"""Beginnings of the names of optimizers that group parameters themselves."""


@dataclass(frozen=True)
class Recipe:
    """What was asked for.

    `hf` holds the given fields of Seq2SeqTrainingArguments only, by their names there. `sources` says for
    every option of ours and every given training argument "command line", "run.yaml:12", "args.json",
    "default", or the source given to `with_defaults`. `notices` are one-line remarks for stderr, `argv` the words
    of the command line."""

    spec: TrainSpec
    hf: dict[str, Any]
    sources: dict[str, str]
    notices: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()

    @classmethod
    def of(cls, values: Mapping[str, Any], sources: Mapping[str, str], **rest: tuple[str, ...]) -> "Recipe":
        """The recipe of values by their canonical names."""
        own = own_flags()
        return cls(
            spec=TrainSpec(**{own[name].key: value for name, value in values.items() if name in own}),
            hf={hf_flags()[name].key: value for name, value in values.items() if name not in own},
            sources=dict.fromkeys(own, DEFAULT) | dict(sources),
            **rest,
        )

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


PHASES = {"do_train": "train", "do_eval": "validation", "do_predict": "test"}


def phases(recipe: Recipe) -> frozenset[str]:
    """What to do: `train`, `validation`, `test`. Naming none of --do-train, --do-eval, --do-predict means training,
    and evaluating where there is validation data; either is left out where its flag says false."""
    chosen = {phase for flag, phase in PHASES.items() if recipe.hf.get(flag)}
    if not chosen:
        refused = {phase for flag, phase in PHASES.items() if recipe.hf.get(flag) is False}
        chosen = {"train", "validation"} - refused
    return frozenset(chosen | ({"validation"} if evaluates_while_training(recipe) else set()))


def evaluation_is_requested(recipe: Recipe) -> bool:
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


class NumberRange(NamedTuple):
    """Numbers from `low` to `high`, `high` itself included unless `below`; `fix` explains the bound."""

    low: float
    high: float | None = None
    below: bool = False
    fix: str | None = None

    def holds(self, value: float) -> bool:
        """Whether the value lies in the range."""
        if self.high is None:
            return value >= self.low
        return self.low <= value < self.high if self.below else self.low <= value <= self.high

    def __str__(self) -> str:
        if self.high is None:
            return f"at least {self.low:g}"
        return f"from {self.low:g} to {'below ' if self.below else ''}{self.high:.10g}"


class RecipeCheck(NamedTuple):
    """`when` a recipe (and one of `flags`, where there are any) is like that, a notice, or an error with its fix."""

    when: str
    message: str = ""
    fix: str = ""
    notice: str = ""
    flags: tuple[str, ...] = ("",)


class _Shown(NamedTuple):
    """A flag in a message: where it was given, and its `value`."""

    recipe: Recipe
    name: str

    def __str__(self) -> str:
        return self.recipe.where(self.name)

    @property
    def value(self) -> str:
        return shown_value(self.name, self.recipe.value(self.name))


def _message(text: str, recipe: Recipe, flag: str) -> str:
    """A text of a check made for `flag`, with the flags that it names."""
    shown = {name: _Shown(recipe, name) for name in all_flags()}
    return text.format_map({**shown, "flag": _Shown(recipe, flag), "default_stage": ZERO_STAGE})


def has_data(spec: TrainSpec) -> bool:
    """Whether the user named any data."""
    return any((spec.mix, spec.dataset, spec.train_file, spec.validation_file, spec.test_file))


# Flags whose values have a form of their own.
READ: dict[str, Callable[[TrainSpec], Any]] = {
    "config_override": lambda spec: config_values(replace(spec, config_overrides=None)),
    "config_overrides": config_values,
    "rope_scaling": lambda spec: spec.rope_scaling and rope_settings(spec.rope_scaling),
    "lr_for": lambda spec: [pattern_and_rate(item) for item in spec.lr_for],
}


def names_of(recipe: Recipe) -> dict[str, Any]:
    """What conditions of checks may name, beside the `flag` that a check is made for."""
    return {name: recipe.value(name) for name in all_flags()} | {
        "value": recipe.value,
        "given": recipe.given,
        "hf": recipe.hf,
        "sources": recipe.sources,
        "phases": phases(recipe),
        "has_data": has_data(recipe.spec),
        "own_micro_batch": recipe.hf.get("per_device_train_batch_size"),
        "has_own_groups": str(recipe.value("optim")).startswith(OWN_GROUPS),
        "is_count": lambda text: str(text).isdecimal() and int(text) > 0,
    }


@cache
def _checks() -> tuple[dict[str, NumberRange], list[RecipeCheck]]:
    content = toml_beside(__file__, "checks.toml")
    limits = {flag: row for row in content["ranges"] for flag in row.pop("flags")}
    engine = [key_of(each) for each in fields(EngineOptions)]
    checks = []
    for row in content["checks"].values():
        named = row.pop("flags", [""])
        flags = tuple(flag for word in named for flag in (engine if word == "@engine" else [word]))
        checks.append(RecipeCheck(flags=flags, **row))
    return {flag: NumberRange(**row) for flag, row in limits.items()}, checks


def ranges() -> dict[str, NumberRange]:
    """The bounds of flags that are numbers."""
    return _checks()[0]


def validate(recipe: Recipe) -> tuple[str, ...]:
    """The notices that a recipe calls for. Raises UsageError for the first thing that cannot work."""
    for name, limits in ranges().items():
        value = recipe.value(name) if recipe.given(name) else None
        if value is not None and not limits.holds(value):
            raise UsageError(f"{recipe.where(name)}: {value} is not {limits}", fix=limits.fix)
    for name, read in READ.items():
        try:
            read(recipe.spec)
        except RejectedValue as error:
            raise UsageError(f"{recipe.where(name)}: {error}") from None
    if recipe.spec.notify:
        from dsrun.notifications.notify_target import parse_targets  # few runs have any

        parse_targets(recipe.spec.notify)
    notices, names = [], names_of(recipe)
    for check in _checks()[1]:
        for flag in check.flags:
            names["flag"] = flag
            if evaluate(check.when, names):
                text = _message(check.notice or check.message, recipe, flag)
                if not check.notice:
                    raise UsageError(text, fix=_message(check.fix, recipe, flag))
                notices.append(text)
    return tuple(notices)
