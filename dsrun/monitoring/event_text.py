"""An event of a run as a line for people, made of the pieces of its kind in dsrun/events.toml."""

from collections.abc import Callable, Mapping
from typing import Any

from dsrun.events import TextPieces, kind_of
from dsrun.messages import PLACEHOLDER
from dsrun.runs.reader import metric_keys
from dsrun.runs.records import LedgerRecord, finite, mapping, whole
from dsrun.system.terminal.display import counted, duration, figure, precise_duration, size_text

_METRICS = 4
_LEAST_S = 0.05


def describe(event: LedgerRecord) -> str:
    """The event in a line without its time: "checkpoint of step 40 saved in 3 s"."""
    kind = kind_of(event)
    text = filled(kind.text or (kind.name,), event)
    message = event.get("message")
    return f"{text} ({message})" if message and "{message}" not in str(kind.text) else text


def filled(pieces: TextPieces, event: LedgerRecord) -> str:
    """The pieces that are complete with the values of an event, one after the other; the first one always, with
    "unknown" for a value."""
    first, *others = pieces
    choices = [first] if isinstance(first, str) else first
    chosen = next((text for each in choices if (text := _piece(each, event))), None)
    begin = chosen or PLACEHOLDER.sub(lambda found: _value(found[1], found[3], event) or "unknown", choices[-1])
    for each in others:
        piece = _piece(str(each), event) or ""
        begin += "" if piece.removeprefix(", ") in begin else piece  # ", exit code 5" behind a message that has it
    return begin


def _piece(text: str, event: LedgerRecord) -> str | None:
    """One piece; None where a value is missing."""
    values = [_value(found[1], found[3], event) for found in PLACEHOLDER.finditer(text)]
    if None in values:
        return None
    known = iter(values)
    return PLACEHOLDER.sub(lambda _: str(next(known)), text)


def _value(name: str, form: str | None, event: LedgerRecord) -> str | None:
    value = event.get(name)
    if form is not None:
        return _FORMS[form](value)
    number = whole(value)
    return f"{number:,}" if number is not None else str(value) if isinstance(value, str) and value else None


def _metrics(value: Any) -> str | None:
    metrics = mapping(value)
    known = [(name, finite(metrics[name])) for name in metric_keys([metrics])]
    shown = [f"{name.removeprefix('eval_')} {figure(value)}" for name, value in known if value is not None]
    return ", ".join(shown[:_METRICS]) or None


# A value of another type, and what is not worth a word, has no text.
_FORMS: Mapping[str, Callable[[Any], str | None]] = {
    "positive": lambda value: f"{number:,}" if (number := whole(value)) else None,
    "ranks": lambda value: counted(number, "rank") if (number := whole(value)) else None,
    "steps": lambda value: counted(number, "step") if (number := whole(value)) else None,
    "size": lambda value: size_text(number) if (number := whole(value)) else None,
    "duration": lambda value: duration(seconds) if (seconds := finite(value)) else None,
    "time": lambda value: precise_duration(seconds) if (seconds := finite(value) or 0.0) >= _LEAST_S else None,
    "metrics": _metrics,
}
