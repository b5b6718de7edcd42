"""The variables of a shell, as far as their values are known without running its script."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from dsrun.datafiles import patterns_beside
from dsrun.system.shell import EARLIER_DOLLAR, LITERAL_DOLLAR

PATTERNS = patterns_beside(__file__, "rules.toml", table="shell_patterns")


@dataclass
class Variables:
    """The variables of one shell. `seen` have been set by then in any way, `exported` are what its children see, and
    `private` what only the shell that has started this one has."""

    values: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, tuple[str, ...]] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    exported: set[str] = field(default_factory=set)
    private: set[str] = field(default_factory=set)
    documents: dict[str, tuple[str, int]] = field(default_factory=dict)
    all_exported: bool = False
    sourced: bool = False

    def inherited(self) -> "Variables":
        """Those of a shell that this one starts. What this one could not expand is not for that one to expand."""
        private = self.seen - self.exported if not (self.all_exported or self.sourced) else set()
        values = {name: passed_on(value) for name, value in self.values.items() if name in self.exported}
        return Variables(
            values, {}, set(self.exported), set(self.exported), private, self.documents, sourced=self.sourced
        )

    def expand(self, word: str) -> str:
        """`word` with the values that are known, of arithmetic also those of plain names."""
        word = PATTERNS["variable"].sub(lambda each: self._value(each[1] or each[2] or each[3], each), word)
        return PATTERNS["arithmetic"].sub(
            lambda each: PATTERNS["name"].sub(lambda one: self._value(one[0], one), each[0]), word
        )

    def _value(self, name: str, found: re.Match[str]) -> str:
        value = self.values.get(name)
        if value is None and "$" not in "".join(self.arrays.get(name, ("$",))[:1]):
            value = " ".join(self.arrays[name][:1])
        return found[0] if value is None else value

    def spread(self, words: Iterable[str], raw: Iterable[str]) -> Iterator[str]:
        """The words that the shell makes of each: an unquoted variable may hold several."""
        for word, written in zip(words, raw, strict=True):
            whole = PATTERNS["array"].fullmatch(word)
            if whole and (held := self.arrays.get(whole[1] or whole[2])) is not None:
                yield from held
                continue
            value = self.expand(word)
            alone = PATTERNS["alone"].fullmatch(word) and value != word and not written.startswith('"')
            yield from PATTERNS["words"].findall(value) if alone else [value]

    def assign(self, name: str, value: str | None, *, exported: bool = False) -> None:
        """Set a variable, or with None make its value unknown."""
        self.seen.add(name)
        self.private.discard(name)
        self.arrays.pop(name, None)
        if exported or self.all_exported:
            self.exported.add(name)
        if value is None or len(value) > 20_000:
            self.values.pop(name, None)
        else:
            self.values[name] = value


def passed_on(text: str) -> str:
    """A text as the next shell reads it: that one expands what this one has left alone."""
    return text.replace("$", EARLIER_DOLLAR).replace(LITERAL_DOLLAR, "$")
