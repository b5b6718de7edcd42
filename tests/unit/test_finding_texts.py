"""Every code that dsrun's modules give to finding_of and text_of has its texts, and the values that these name."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dsrun
from dsrun.datafiles import read_toml
from dsrun.findings.texts import tables
from dsrun.messages import PLACEHOLDER

PACKAGE = Path(dsrun.__file__).parent
NOT_VALUES = {"where", "level", "fix", "prefix"}


def calls() -> Iterator[tuple[str, str, str, set[str] | None]]:
    """Module, function, key and the names of the values of every call with a literal key; None where ** gives more."""
    for module in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or not node.args:
                continue
            if node.func.id in ("finding_of", "text_of"):
                names = {each.arg for each in node.keywords}
                given = None if None in names else {name for name in names if name}
                for key in literal_keys(node.args[0]):
                    yield f"{module.relative_to(PACKAGE)}:{node.lineno}", node.func.id, key, given


def literal_keys(node: ast.expr) -> list[str]:
    """The strings that an argument is, or one of whose it is."""
    if isinstance(node, ast.IfExp):
        return literal_keys(node.body) + literal_keys(node.orelse)
    return [node.value] if isinstance(node, ast.Constant) else []


def texts(function: str, key: str) -> list[str]:
    """What such a call prints. Raises KeyError where there is nothing."""
    above, _, name = key.rpartition(".")
    row: Any = tables()
    for part in (above if function == "text_of" else key).split("."):
        row = row[part]
    return [row[name]] if function == "text_of" else [row["message"], row.get("fix", "")]


def test_every_key_has_its_texts_and_their_values():
    wrong = []
    for place, function, key, given in calls():
        try:
            named = {found[1] for text in texts(function, key) for found in PLACEHOLDER.finditer(text)}
        except (KeyError, TypeError):
            wrong.append(f"{place}: no text {key}")
            continue
        values = given - NOT_VALUES if given and function == "finding_of" else given
        if values is not None and named != values:
            wrong.append(f"{place}: {key} has {sorted(named)}, given are {sorted(values)}")
    assert wrong == []


def test_every_text_is_used():
    """By a literal key, or its beginning in an f-string."""
    strings = {
        node.value
        for module in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }

    def keys(row: dict[str, Any], above: str) -> Iterator[str]:
        if "message" in row:
            yield above
        for name, value in row.items():
            if isinstance(value, dict):
                yield from keys(value, f"{above}.{name}".lstrip("."))
            elif name not in ("level", "message", "fix"):
                yield f"{above}.{name}"

    dynamic = tuple(each for each in strings if each.endswith(".") and each.count(".") == 1 and len(each) > 4)
    assert [key for key in keys(tables(), "") if key not in strings and not key.startswith(dynamic)] == []


def test_each_code_is_in_one_file():
    codes = Counter(code for file in PACKAGE.glob("findings/text/*.toml") for code in read_toml(file))
    assert [code for code, count in codes.items() if count > 1] == []
