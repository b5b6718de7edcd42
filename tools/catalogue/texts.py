"""All texts of dsrun that are translated, and where each comes from: fields of TOML files, and literals in the code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dsrun.datafiles import read_toml

CHECKOUT = Path(__file__).parents[2]
TABLES = {
    "../build/ops.toml": ("what", "broken", "note"),
    "diagnosis/rules.toml": ("title", "means", "fix", "other_fix"),
    "diagnosis/taxonomy.toml": ("means", "fix"),
    "doctor/checks.toml": ("title", "needs"),
    "doctor/gpu/peer_states.toml": ("means", "fix"),
    "doctor/gpu/throttle_reasons.toml": ("means", "fix"),
    "doctor/gpu/xids.toml": ("means", "fix"),
    "doctor/host/infiniband.toml": ("means",),
    "system/known_bad.toml": ("message", "fix"),
    "slurm/lint/rules.toml": ("message", "fix"),
    "zero/rules.toml": ("message", "fix"),
    "zero/lint/codes.toml": ("meaning",),
    "zero/legacy.toml": ("removed_from_compile", "removed", "forgotten", "deprecated", "optimizers"),
}
"""The fields that are translated, or the tables whose texts are, by file below dsrun."""
NOT_PRINTED = ("flags.",)
"""Rows that are errors, and so English: those of zero/rules.toml about flags."""


def texts() -> dict[str, list[str]]:
    """Every text, in the order of its sources, with the codes and modules that have it."""
    found: dict[str, list[str]] = {}
    package = CHECKOUT / "dsrun"
    for name, fields in TABLES.items():
        for origin, text in _fields(read_toml(package / name), fields):
            if text and not origin.startswith(NOT_PRINTED):
                _add(found, text, origin)
    for file in sorted((package / "findings/text").glob("*.toml")):
        for origin, text in _of_findings(read_toml(file)):
            _add(found, text, origin)
    for module in sorted(package.rglob("*.py")):
        for text in literals(module.read_text(encoding="utf-8")):
            _add(found, text, module.relative_to(CHECKOUT).as_posix())
    return found


def _add(found: dict[str, list[str]], text: str, origin: str) -> None:
    origins = found.setdefault(text, [])
    if origin not in origins:
        origins.append(origin)


def _fields(
    content: Any, fields: tuple[str, ...], origin: str = "", *, inside: bool = False
) -> Iterator[tuple[str, str]]:
    """The texts below such fields, each with its origin, `cuda_oom.title`. In lists, single words are names."""
    if isinstance(content, dict):
        for name, value in content.items():
            if name != "values":  # expressions that fill texts
                yield from _fields(value, fields, f"{origin}.{name}".lstrip("."), inside=inside or name in fields)
    elif isinstance(content, list):
        for each in content:
            code = each.get("code") if isinstance(each, dict) else None
            if not isinstance(each, str) or " " in each:
                yield from _fields(each, fields, code or origin, inside=inside)
    elif inside and isinstance(content, str):
        yield origin, content


def _of_findings(tables: dict[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """All texts of findings, each with the code that has it, as `dsrun.findings.finding` names it."""
    for name, value in tables.items():
        origin = f"{above}.{name}".lstrip(".")
        if isinstance(value, dict):
            yield from _of_findings(value, origin)
        elif name != "level" and value:
            yield origin, value


def literals(source: str) -> Iterator[str]:
    """The templates that a module gives to Message, joined, counted and translated; titles and needs of checks."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        if node.func.id in ("Message", "joined", "translated") and node.args:
            yield from _constants(node.args[0])
        elif node.func.id == "Check" and len(node.args) > 1:
            yield from _constants(node.args[1])
            yield from (text for each in node.keywords if each.arg == "needs" for text in _constants(each.value))
        elif node.func.id == "counted" and len(node.args) == 2:
            yield from (f"{{number:,}} {noun}s" for noun in _constants(node.args[1]))


def _constants(node: ast.expr) -> Iterator[str]:
    """The literal itself, or both that an expression chooses between."""
    if isinstance(node, ast.IfExp):
        yield from _constants(node.body)
        yield from _constants(node.orelse)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value:
        yield node.value
