"""Message: a text for people that remembers its template and values, so that it can be printed in another language.

Stored, compared, pickled or written as JSON it is its English text. Where it is printed for a person,
`dsrun.findings.translation` looks its template up."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from dsrun.errors import nearest

# {name}, {name!r}, {name:.1f}, and the keys of DeepSpeed's JSON, {zero_optimization.stage}.
PLACEHOLDER = re.compile(r"\{([A-Za-z_][\w.]*)(!r)?(?::([^{}]*))?\}")
# What templates count, in the plural, perhaps behind another word.
_COUNTED = re.compile(
    r"(?<!of the )(\{[^{} ]+\}) "
    r"((?:[a-z]+ )?(?:GPU|CPU|NVLink|byte|character|conversation|core|day|device|element|fact|file|group|head|host|hour"
    r"|id|lane|layer|licence|line|machine|megabyte|message|minute|model|node|operation|pair|parameter|port|position"
    r"|process|rank|row|sample|slot|step|task|tensor|thread|time|token|value|weight|worker))(?:es|s)\b"
    r"(?: (are|have)\b)?"
)
_OF_ONE = {"are": " is", "have": " has", None: ""}


class Message(str):
    """`template` with its {placeholders} filled; braces around anything else, as bash writes them, stay.

    `tools.catalogue` finds literal templates in the code: choose among whole sentences rather than among words, since
    other languages put them elsewhere. A value that is a Message itself is translated too."""

    template: str
    values: Mapping[str, Any] | tuple[str, ...]

    def __new__(cls, template: str, /, **values: Any) -> Self:
        return cls.reads(fill(template, values), template, values)

    @classmethod
    def reads(cls, text: str, template: str, values: Mapping[str, Any] | tuple[str, ...]) -> Self:
        """A message that is `text` in English. Where `values` is a tuple, they are what the template separates."""
        made = super().__new__(cls, text)
        made.template = template
        made.values = values
        return made

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """Copied, pickled and in `asdict`, it is the English text alone."""
        return str, (str(self),)


def joined(separator: str, parts: Iterable[str]) -> Message:
    """`separator.join(parts)` whose parts, and the separator itself, are still translated."""
    kept = tuple(parts)
    return Message.reads(separator.join(kept), separator, kept)


def suggestion(name: str, known: Iterable[str], otherwise: Message | None = None) -> Message:
    """As `errors.did_you_mean`, for a finding's fix."""
    known = sorted(set(known))
    match = nearest(name, known)
    if match:
        return Message("did you mean {match}?", match=match)
    if otherwise is not None:
        return otherwise
    return Message("known: {names}", names=", ".join(known)) if known else Message("remove it")


def fill(template: str, values: Mapping[str, Any]) -> str:
    """`template` with the values of its placeholders; those without a value stay."""

    def filled(text: str) -> str:
        return PLACEHOLDER.sub(lambda found: _shown(found, values), text)

    return filled(with_singular(template, filled))


def with_singular(template: str, filled: Callable[[str], str]) -> str:
    """An English template in which "{count} GPUs are" has become "{count} GPU is" where `filled` makes a 1 of the
    placeholder."""
    one = (found for found in _COUNTED.finditer(template) if filled(found[1]) == "1")
    for found in one:
        template = template.replace(found[0], f"{found[1]} {found[2]}{_OF_ONE[found[3]]}")
    return template


def _shown(found: re.Match[str], values: Mapping[str, Any]) -> str:
    name, as_repr, form = found.groups()
    if name not in values:
        return found[0]
    return format(repr(values[name]) if as_repr else values[name], form or "")
