"""The removed training flags of a run.yaml, rewritten in place: comments and layout stay."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml

from dsrun.errors import UsageError
from dsrun.recipe.compat.removed import SAME, removed_flags, translate
from dsrun.recipe.flags import normalise
from dsrun.recipe.parsed_value import ParsedValue
from dsrun.recipe.runfile import read_run_file
from dsrun.system.yaml_nodes import yaml_text

SECTION = "train"


Edit = tuple[int, int, str]
"""The characters from one to another place, and what to put in their place."""


def upgrade_run_file(path: Path, shown: str) -> tuple[str, list[str], list[str]]:
    """Rewrite the removed training flags of a run.yaml: the new text, one line for each change, and one for each flag
    that has no equivalent and was left alone. `shown` is the path as the user wrote it.

    Raises UsageError for a file that `dsrun train --config` would not read either."""
    given = {each.source: each for each in read_run_file(path, shown)}
    text = yaml_text(path, shown)
    present = {each.name for each in given.values()}
    edits, changes, left = [], [], []
    for key, value in _section(text, shown):
        each = given.get(f"{shown}:{key.start_mark.line + 1}")
        if each is None or normalise(key.value) not in removed_flags():
            continue
        try:
            _, notice = translate(each, present)
        except UsageError as error:
            left.append(str(error))
            continue
        edits.append(_edit(text, key, value, each, present))
        changes.append(str(notice))
    for start, end, new in reversed(edits):
        text = text[:start] + new + text[end:]
    return text, changes, left


def _section(text: str, shown: str) -> list[tuple[yaml.ScalarNode, yaml.Node]]:
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    for key, value in root.value if isinstance(root, yaml.MappingNode) else ():
        if key.value == SECTION and isinstance(value, yaml.MappingNode):
            if value.flow_style:
                where = f"{shown}:{value.start_mark.line + 1}"
                raise UsageError(f"{where}: {SECTION}: is in braces", fix="write one flag a line")
            return list(value.value)
    return []


def _edit(text: str, key: yaml.ScalarNode, value: yaml.Node, given: ParsedValue, present: Collection[str]) -> Edit:
    case = removed_flags()[given.name].case(given.value)
    if not case.becomes or case.becomes in present:
        return _without(text, key, value)
    start, end = key.start_mark.index, key.end_mark.index
    if case.value is SAME:
        return start, end, case.becomes
    return start, value.end_mark.index, f"{case.becomes}: {_as_yaml(case.value)}"


def _without(text: str, key: yaml.ScalarNode, value: yaml.Node) -> Edit:
    """The lines of a key and its value taken out; comments behind them stay."""
    lines = text.splitlines(keepends=True)
    first, last = key.start_mark.line, value.end_mark.line
    if value.end_mark.column == 0 and last > first:
        last -= 1
    while last > first and (not lines[last].strip() or lines[last].lstrip().startswith("#")):
        last -= 1
    start = sum(map(len, lines[:first]))
    return start, start + sum(map(len, lines[first : last + 1])), ""


def _as_yaml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list) else str(value)
