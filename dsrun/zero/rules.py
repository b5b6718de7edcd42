"""Settings of a DeepSpeed configuration that exclude each other, or of which one makes the other useless.

The same rules hold for a file (`dsrun config check`) and for what flags ask (`dsrun config`): they look at the JSON
that DeepSpeed will read. rules.toml has them, with the conditions under which they hold."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from dsrun.datafiles import SubjectNames, evaluate, toml_beside
from dsrun.findings.finding import Level
from dsrun.messages import PLACEHOLDER, Message
from dsrun.zero.schema import shown
from dsrun.zero.view import ConfigView


class ConfigRule(NamedTuple):
    """`when` the settings meet, a finding at `key`: an error where DeepSpeed stops, a warning where it ignores one.
    Rules about flags have none: they refuse what the JSON does not show.

    With `in_train` it is `dsrun train` that cannot do it: an error in a file for the Trainer, nothing in one for
    DeepSpeed alone, and a warning where it is not known whose it is."""

    when: str
    message: str
    fix: str
    source: str
    key: str = ""
    level: Level = "error"
    code: str = "conflict"
    in_train: bool = False

    def level_in(self, view: ConfigView) -> Level | None:
        """How serious it is in this configuration; None where the rule does not hold for its reader."""
        if not self.in_train or view.for_trainer:
            return self.level
        return None if view.is_target_given else "warning"

    def formatted(self, text: str, view: ConfigView) -> Message:
        """`text` with the values of the keys in braces."""
        return Message(text, **{found[1]: shown(view.value(found[1])) for found in PLACEHOLDER.finditer(text)})


@cache
def read_rules(table: str) -> dict[str, Any]:
    """A table of rules.toml: the rules of "config" or "flags" by their names, or the "terms" of one of them."""
    return dict(toml_beside(__file__)[table])


@cache
def rules(table: str = "config") -> tuple[ConfigRule, ...]:
    """Those about a configuration, or about "flags"."""
    return tuple(ConfigRule(**rule) for rule in read_rules(table).values())


def names_of(view: ConfigView, terms: Mapping[str, str] | None = None, /, **names: Any) -> SubjectNames:
    """What conditions of rules may name of a configuration, with further terms and names."""
    return SubjectNames(_ConfigTerms(view), read_rules("terms")["config"] | (terms or {}), **names)


def broken(view: ConfigView) -> Iterator[tuple[ConfigRule, str, str]]:
    """The rules that the configuration breaks, each with its message and fix."""
    names = names_of(view)
    for rule in rules():
        level = rule.level_in(view) if evaluate(rule.when, names) else None
        if level:
            yield rule._replace(level=level), rule.formatted(rule.message, view), rule.formatted(rule.fix, view)


class _ConfigTerms:
    """What conditions ask of a configuration, beside what it answers itself."""

    def __init__(self, view: ConfigView) -> None:
        self.view = view

    def __getattr__(self, name: str) -> Any:
        return getattr(self.view, name)

    def is_on(self, key: str) -> bool:
        return self.view.value(key) is True

    def number(self, key: str, default: float = 0) -> float:
        """A number, or `default` where it is not one or cannot be known."""
        found: Any = self.view.value(key)
        return found if isinstance(found, int | float) and not isinstance(found, bool) else default

    def text(self, *path: str) -> str | None:
        """A text of the file in lower case; None where there is none."""
        found = self.view.raw(*path)
        return found.lower() if isinstance(found, str) else None

    def is_a(self, key: str, kind: str) -> bool:
        """Whether a value is of a type: int or str."""
        return type(self.view.value(key)).__name__ == kind

    @property
    def format(self) -> str | None:
        """bf16, fp16 or fp32, None where the Trainer decides."""
        fp16, bf16 = self.view.precision("fp16"), self.view.precision("bf16")
        if fp16 or bf16:
            return "fp16" if fp16 else "bf16"
        return None if fp16 is None or bf16 is None else "fp32"

    def does_not_divide(self, ranks: float) -> bool:
        """Whether the number of GPUs is known and no multiple of `ranks`."""
        return self.view.world_size is not None and self.view.world_size % ranks != 0

    def passes(self, *names: str) -> bool:
        """Whether DeepCompile is on, and has one of these passes."""
        listed = self.view.raw("compile", "passes")
        return self.is_on("compile.deepcompile") and isinstance(listed, list) and not set(names).isdisjoint(listed)
