"""The reference of `dsrun train`: `--help` and the generated part of docs/train.md, both from the flag table.

`python -m dsrun.recipe.reference` prints the generated part; `python -m dsrun.recipe.reference docs/train.md`
puts it between the markers of that file.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter
from typing import TypeVar

from dsrun.docpage import GeneratedPart, table
from dsrun.recipe.flags import CHOSEN, Flag, by_spelling, hf_flags, hf_version, own_flags, shown
from dsrun.recipe.parsed_value import shown_value
from dsrun.recipe.removed import SAME, Case, Removed
from dsrun.recipe.removed import table as removed_flags

HELP_COLUMN = 30
Named = TypeVar("Named", Flag, Removed)


def default_text(flag: Flag) -> str:
    """The default as the reference writes it, in words where it is chosen when a run starts; empty for nothing."""
    if flag.default is None or flag.default == []:
        return CHOSEN.get(flag.name, "")
    return shown_value(flag.name, flag.default)


def value_text(flag: Flag) -> str:
    """What follows the flag: its choices, its placeholder, or nothing for a switch."""
    if flag.choices is not None:
        return "|".join(flag.choices)
    if flag.kind == "bool":
        return ""
    word = flag.metavar or {"int": "N"}.get(flag.kind, flag.name.upper())
    return f"{word} …" if flag.kind == "list" else word


def _grouped() -> list[tuple[str, list[Flag]]]:
    return [(title, list(flags)) for title, flags in groupby(own_flags().values(), key=attrgetter("group"))]


def help_text(width: int = 80) -> str:
    """The flags of `dsrun train` as plain text of at most `width` columns."""
    parts = ["\n".join([f"{title}:", *(_help_entry(flag, width) for flag in flags)]) for title, flags in _grouped()]
    names = " ".join(flag.shown for flag in _sorted(hf_flags().values()))
    title = f"Training arguments of Transformers ({hf_version()}), under their own names:"
    listed = textwrap.fill(names, width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    notes = "Hyphens and underscores in a flag are the same; a switch takes an optional true or false, and --no-NAME "
    notes += "turns it off. Flags that Transformers 5 removed are translated with a notice."
    parts += [f"{textwrap.fill(title, width)}\n{listed}", textwrap.fill(notes, width)]
    return "\n\n".join(parts) + "\n"


def _sorted(flags: Iterable[Named]) -> list[Named]:
    return sorted(flags, key=lambda flag: flag.name)


def _help_entry(flag: Flag, width: int) -> str:
    """One flag: name and value to the left, meaning to the right, or below where there is no room."""
    head = f"  {flag.shown} {value_text(flag)}".rstrip()
    default = default_text(flag)
    meaning = flag.help + (f" [{default}]" if default not in ("", "false") else "")
    indent = " " * HELP_COLUMN
    lines = textwrap.wrap(meaning, max(20, width - HELP_COLUMN), break_on_hyphens=False)
    if len(head) > HELP_COLUMN - 2:
        return "\n".join([head, *(indent + line for line in lines)])
    return "\n".join([head.ljust(HELP_COLUMN) + lines[0], *(indent + line for line in lines[1:])])


def markdown() -> str:
    """The generated part of docs/train.md: our flags by group, the names of the others, the removed flags."""
    parts = ["## Flags of dsrun"]
    for title, flags in _grouped():
        rows = [_row(flag) for flag in flags]
        parts += [f"### {title}", table(("flag", "value", "default", "meaning"), rows)]
    parts += [
        "## Training arguments of Transformers",
        f"All {len(hf_flags())} of them are taken under their own names (Transformers {hf_version()}):",
        ", ".join(f"`{flag.shown}`" for flag in _sorted(hf_flags().values())) + ".",
        "`--trainer_debug` is the training argument `debug`; `--debug underflow_overflow` reaches it too.",
        "## Flags that Transformers 5 removed",
        "Each is translated with one notice on stderr, or refused with what to write instead.",
        table(("flag", "what happens"), [(f"`--{row.name}`", _fate(row)) for row in _sorted(removed_flags().values())]),
    ]
    return "\n\n".join(parts) + "\n"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _row(flag: Flag) -> tuple[str, str, str, str]:
    also = ", ".join(f"`{shown(alias)}`" for alias in flag.aliases)
    meaning = flag.help + (f"; also {also}" if also else "")
    return f"`{flag.shown}`", _code(value_text(flag)) or "switch", _code(default_text(flag)), meaning


def _fate(row: Removed) -> str:
    return "; ".join(_case(case, several=len(row.cases) > 1) for case in row.cases)


def _case(case: Case, *, several: bool) -> str:
    """One case of a removed flag in words."""
    opening = f"{case.label or 'else'}: " if several else ""
    if case.becomes:
        flag = by_spelling()[case.becomes]
        value = "" if case.value is SAME else f" {shown_value(flag.name, case.value)}"
        return f"{opening}taken as `{flag.shown}{value}`"
    return f"{opening}refused, {case.reason}: {case.advice}" if case.fix else f"{opening}ignored, {case.reason}"


PART = GeneratedPart("dsrun.recipe.reference", markdown)


if __name__ == "__main__":
    PART.main(sys.argv[1:])
