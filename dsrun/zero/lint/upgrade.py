"""upgrade(): an old DeepSpeed config in today's keys.

Everything else stays as it is: the order, the numbers as they are written, what fits on one line, indent and line ends.
A file without old keys comes back byte for byte.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsrun.errors import UsageError
from dsrun.zero.lint.source import NotJsonError, Source, read
from dsrun.zero.lint.upgrade_steps import STEPS, Change, Log
from dsrun.zero.lint.writer import one_liners, write


@dataclass(frozen=True)
class Upgraded:
    """The new text, and what is different about it."""

    text: str
    changes: tuple[Change, ...]


def upgrade(text: str, *, file: str = "ds.json") -> Upgraded:
    """Rewrite the keys of older DeepSpeed releases.

    `file` is the text's name in errors. Raises UsageError, with the place, for text that is not a JSON object.
    """
    try:
        source = read(text)
    except NotJsonError as error:
        raise UsageError(f"{file}:{error.spot}: not JSON: {error.message}", fix=error.fix or None) from None
    config = source.value
    if not isinstance(config, dict):
        raise UsageError(f"{file}: not a JSON object", fix="a DeepSpeed config is one object {…}")
    log = Log()
    inline = one_liners(source)
    _text(source, log)
    for step in STEPS:
        step(config, log)
    if not log.changes:
        return Upgraded(text, ())
    return Upgraded(write(config, text, source, inline), tuple(log.changes))


def _text(source: Source, log: Log) -> None:
    for kind, what in (
        ("comment", "comments left out"),
        ("trailing_comma", "commas after the last member left out"),
        ("python_word", "True, False and None written as true, false and null"),
        ("mark", "byte order mark left out"),
        ("single_quotes", "single quotes written as double quotes"),
    ):
        lines = [str(slip.spot.line) for slip in source.slips if slip.kind == kind]
        if lines:
            log.changes.append(Change(f"line {', '.join(lines)}", what, "accelerate reads strict JSON"))
    for double in source.doubles:
        log.add(double.path, f"the first of two left out (line {double.first.line})", "the last one holds")
