"""Values -> JSON text in the manner of the file they came from: numbers as written, short objects on one line."""

from __future__ import annotations

import json
import re
from typing import Any

from dsrun.zero.lint.source import Path, Source

FIRST_INDENT = re.compile(r"^[{\[]\s*\n([ \t]+)")


Inline = dict[int, object]


def one_liners(source: Source) -> Inline:
    """The objects and lists that stand on the line of their key, by id; holding them keeps the ids theirs."""
    found: Inline = {}
    _collect((), source.value, source, found)
    return found


def _collect(path: Path, value: Any, source: Source, found: Inline) -> None:
    members = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    line = source.spot(path).line
    if members and all(spot.line == line for each, spot in source.spots.items() if each[: len(path)] == path):
        found[id(value)] = value
    for key, each in members:
        _collect((*path, key), each, source, found)


def indent_of(text: str) -> str:
    """What the file's first member is indented with; two spaces when it is not."""
    match = FIRST_INDENT.match(text.lstrip("\ufeff \t\r\n"))
    return match.group(1) if match else "  "


def write(value: Any, *, indent: str, inline: Inline) -> str:
    """The value as JSON with a final newline."""
    return _written(value, "", indent, inline) + "\n"


def _written(value: Any, pad: str, indent: str, inline: Inline) -> str:
    if not isinstance(value, dict | list):
        return _scalar(value)
    opening, closing = ("{", "}") if isinstance(value, dict) else ("[", "]")
    flat = id(value) in inline or not value
    inner = pad if flat else pad + indent
    if isinstance(value, dict):
        members = [
            f"{json.dumps(key, ensure_ascii=False)}: {_written(v, inner, indent, inline)}"
            for key, v in value.items()
        ]
    else:
        members = [_written(each, inner, indent, inline) for each in value]
    if flat:
        return opening + ", ".join(members) + closing
    return f"{opening}\n" + ",\n".join(inner + each for each in members) + f"\n{pad}{closing}"


def _scalar(value: Any) -> str:
    text = getattr(value, "text", None)
    return text if isinstance(text, str) else json.dumps(value, ensure_ascii=False)
