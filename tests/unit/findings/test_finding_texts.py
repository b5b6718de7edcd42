"""Every code that dsrun's modules give to finding_of and text_of has its texts, and the values that these name."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dsrun
from dsrun.datafiles import read_toml
from dsrun.findings.finding import tables
from dsrun.messages import PLACEHOLDER

PACKAGE = Path(dsrun.__file__).parent
NOT_VALUES = {"where", "level", "fix", "prefix"}
COLLECTORS = {"add": ({"position"}, {"key", "eager", "late"}), "_error": (set(), set())}
"""Methods of dsrun/zero/lint that take a finding's key: parameters that are no values, and values of their own."""


def calls() -> Iterator[tuple[str, str, str, set[str] | None]]:
    """Module, function, key and the names of the values of every call with a literal key; None where ** gives more."""
    for module in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            function = called(node, module)
            if function and isinstance(node, ast.Call):
                names = {each.arg for each in node.keywords}
                given = None if None in names else {name for name in names if name}
                for key in literal_keys(node.args[0]):
                    yield f"{module.relative_to(PACKAGE)}:{node.lineno}", function, key, given
    for file, row in condition_rows():
        # The other words of its texts are names that the caller gives.
        words = {found[1] for text in texts("finding_of", row["key"]) for found in PLACEHOLDER.finditer(text)}
        yield file, "finding_of", row["key"], words | set(row.get("values", {}))
    for check in lint_checks():
        yield "zero/lint/checks.toml", "add", check["key"], set(check.get("values", {}))
        for expression in expressions(check):
            for node in ast.walk(expression):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "text_of":
                    for key in literal_keys(node.args[0]):
                        yield "zero/lint/checks.toml", "text_of", key, {each.arg or "" for each in node.keywords}


def condition_rows() -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of every conditions.toml (dsrun/findings/finding.py)."""
    for file in sorted(PACKAGE.rglob("conditions.toml")):
        for rows in read_toml(file).values():
            yield from ((file.relative_to(PACKAGE).as_posix(), row) for row in rows if isinstance(rows, list))


def lint_checks() -> Iterator[dict[str, Any]]:
    """The rows of dsrun/zero/lint/checks.toml, whose keys are given to a collector's `add`."""
    groups = read_toml(PACKAGE / "zero/lint/checks.toml")
    terms = groups.pop("terms")
    for rows in groups.values():
        yield from ({**row, "terms": terms} for row in rows)


def expressions(check: dict[str, Any]) -> list[ast.Expression]:
    """What is an expression in a row, and the terms that it may name."""
    own = [check[name] for name in ("when", "level", "fix") if name in check]
    return [
        ast.parse(each, mode="eval") for each in (*own, *check.get("values", {}).values(), *check["terms"].values())
    ]


def called(node: ast.AST, module: Path) -> str | None:
    """The function, or method of a collector, to which the call gives a key."""
    if not isinstance(node, ast.Call) or not node.args:
        return None
    if isinstance(node.func, ast.Name) and node.func.id in ("finding_of", "text_of"):
        return node.func.id
    is_collector = isinstance(node.func, ast.Attribute) and node.func.attr in COLLECTORS
    return node.func.attr if is_collector and module.parent == PACKAGE / "zero/lint" and len(node.args) < 3 else None


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
        others, own = COLLECTORS.get(function, (set(), set()))
        options = set() if function == "text_of" else NOT_VALUES | others | own
        if given is not None and named - own != given - options:
            wrong.append(f"{place}: {key} has {sorted(named)}, given are {sorted(given - options)}")
    assert wrong == []


def beginnings(call: ast.Call) -> Iterator[str]:
    """What the key of a call begins with, where it ends with a value: "level." of f"level.{level}"."""
    for node in ast.walk(call.args[0]):
        first = node.values[0] if isinstance(node, ast.JoinedStr) else getattr(node, "left", None)
        if isinstance(first, ast.Constant) and isinstance(first.value, str) and "." in first.value:
            yield first.value


def test_every_text_is_used():
    """By a literal key, or its beginning in a call that makes the rest of it."""
    strings, dynamic = set(), set()
    for module in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                strings.add(node.value)
            if isinstance(node, ast.Call) and called(node, module):
                dynamic.update(beginnings(node))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "text_table":
                dynamic.update(f"{key}." for key in literal_keys(node.args[0]))

    strings |= {row["key"] for _, row in condition_rows()}
    for check in lint_checks():
        nodes = [node for expression in expressions(check) for node in ast.walk(expression)]
        strings |= {check["key"], *(node.value for node in nodes if isinstance(node, ast.Constant))}

    for table in PACKAGE.rglob("*.toml"):
        strings |= set(re.findall(r"text_of\('([^']+)'", table.read_text(encoding="utf-8")))

    def keys(row: dict[str, Any], above: str) -> Iterator[str]:
        if "message" in row:
            yield above
        for name, value in row.items():
            if isinstance(value, dict):
                yield from keys(value, f"{above}.{name}".lstrip("."))
            elif name not in ("level", "message", "fix"):
                yield f"{above}.{name}"

    assert [key for key in keys(tables(), "") if key not in strings and not key.startswith(tuple(dynamic))] == []


def test_each_code_is_in_one_file():
    codes = Counter(code for file in PACKAGE.glob("findings/text/*.toml") for code in read_toml(file))
    assert [code for code, count in codes.items() if count > 1] == []
