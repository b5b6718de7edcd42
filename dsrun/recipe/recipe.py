"""Recipe: a training run as the user described it, every value with its source; and what is wrong with it by itself.

No file, model, GPU or world size is looked at here. What each check says and when it holds is in checks.toml,
a condition that takes code in `WHEN`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from dsrun.datafiles import toml_beside
from dsrun.errors import UsageError
from dsrun.recipe.flags import ZERO_STAGE, all_flags, hf_flags, own_flags, shown_value
from dsrun.recipe.parsed_value import COMMAND_LINE, RejectedValue, pattern_and_rate
from dsrun.recipe.recipe_spec import TrainSpec

DEFAULT = "default"
OWN_GROUPS = ("galore", "apollo", "lomo", "adalomo")
"""Beginnings of the names of optimizers that group parameters themselves."""


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

    @classmethod
    def of(cls, values: Mapping[str, Any], sources: Mapping[str, str], **rest: tuple[str, ...]) -> "Recipe":
        """The recipe of values by their canonical names."""
        own = own_flags()
        return cls(
            spec=TrainSpec(**{name: value for name, value in values.items() if name in own}),
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

    when: Callable[[Recipe, str], bool]
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


class _Fields(dict[str, Any]):
    """The flags that a message names."""

    def __init__(self, recipe: Recipe, flag: str) -> None:
        super().__init__(flag=_Shown(recipe, flag), default_stage=ZERO_STAGE)
        self.recipe = recipe

    def __missing__(self, name: str) -> _Shown:
        return _Shown(self.recipe, name)


def has_data(spec: TrainSpec) -> bool:
    """Whether the user named any data."""
    return any((spec.mix, spec.dataset, spec.train_file, spec.validation_file, spec.test_file))


def _two_micro_batches(recipe: Recipe, _: str) -> bool:
    sizes = {recipe.spec.micro_batch_size, recipe.hf.get("per_device_train_batch_size")}
    return None not in sizes and len(sizes) == 2


def _is_no_number_of_steps(recipe: Recipe, _: str) -> bool:
    every = recipe.spec.save_every
    return every not in (None, "auto") and not (str(every).isdecimal() and int(str(every)) > 0)


def _holds(terms: Sequence[str]) -> Callable[[Recipe, str], bool]:
    """Whether all the terms hold for a recipe and a flag; their form stands in checks.toml."""
    return lambda recipe, flag: all(_term(recipe, each.replace("{flag}", flag).split()) for each in terms)


def _term(recipe: Recipe, words: list[str]) -> bool:
    match words:
        case ["not", *rest]:
            return not _term(recipe, rest)
        case ["given", name]:
            return recipe.given(name)
        case [name, "=", *values]:
            return str(recipe.value(name)) in values
        case [name, "!=", *values]:
            return str(recipe.value(name)) not in values
    (name,) = words
    return bool(recipe.value(name))


WHEN: dict[str, Callable[[Recipe, str], bool]] = {
    "no_model": lambda r, _: r.spec.model is r.spec.model_type is r.spec.config_name is None,
    "fsdp_and_zero": lambda r, _: bool(r.value("fsdp")) and bool(r.value("deepspeed") or r.spec.zero != "0"),
    "bf16_master_precision": lambda r, name: r.spec.bf16_master_weights and r.hf.get(name) is (name == "fp16"),
    "micro_batch_twice": _two_micro_batches,
    "nothing_to_do": lambda r, _: not phases(r),
    "nothing_trained": lambda r, name: r.given(name) and not r.given("do_train") and "train" not in phases(r),
    "test_file_unused": lambda r, _: bool(r.spec.test_file) and "test" not in phases(r),
    "stream_without_end": lambda r, _: r.spec.streaming and r.value("max_steps") <= 0 and "train" in phases(r),
    "long_context_against": lambda r, name: (
        bool(r.spec.long_context and r.value(name)) and r.sources.get(name) not in (None, DEFAULT, "--long-context")
    ),
    "dpo_without_data": lambda r, _: r.spec.task == "dpo" and not has_data(r.spec),
    "fp8_without_bf16": lambda r, name: r.spec.fp8 and r.hf.get(name) is (name == "fp16"),
    "rates_of_own_groups": lambda r, name: r.given(name) and str(r.value("optim")).startswith(OWN_GROUPS),
    "save_every_invalid": _is_no_number_of_steps,
    "push_without_training": lambda r, _: bool(r.value("push_to_hub")) and "train" not in phases(r),
}


@cache
def _checks() -> tuple[dict[str, NumberRange], list[RecipeCheck]]:
    content = toml_beside(__file__, "checks.toml")
    limits = {flag: row for row in content["ranges"] for flag in row.pop("flags")}
    checks = [
        RecipeCheck(when=_holds(row.pop("when")) if "when" in row else WHEN[name], **row)
        for name, row in content["checks"].items()
    ]
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
    for item in recipe.spec.model_config:
        key, equals, _ = item.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{recipe.where('model_config')}: {item!r} is not key=value")
    for item in recipe.spec.lr_for:
        try:
            pattern_and_rate(item)
        except RejectedValue as error:
            raise UsageError(f"{recipe.where('lr_for')}: {error}") from None
    if recipe.spec.notify:
        from dsrun.notifications.notify_target import parse_targets  # few runs have any

        parse_targets(recipe.spec.notify)
    notices = []
    for check in _checks()[1]:
        for flag in check.flags:
            if check.when(recipe, flag):
                text = (check.notice or check.message).format_map(_Fields(recipe, flag))
                if not check.notice:
                    raise UsageError(text, fix=(check.fix or "").format_map(_Fields(recipe, flag)))
                notices.append(text)
    return tuple(notices)
