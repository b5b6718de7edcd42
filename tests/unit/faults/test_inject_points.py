"""Every point at which a fault can be injected names a function that is there."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

INJECT = Path(__file__).parents[2] / "faults/inject/sitecustomize.py"


def points() -> dict[str, tuple[str, str]]:
    """POINTS, without running the module: it patches the process that imports it."""
    for node in ast.parse(INJECT.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "POINTS":
            found: dict[str, tuple[str, str]] = ast.literal_eval(node.value)
            return found
    raise AssertionError("no POINTS")


@pytest.mark.parametrize(("module", "name"), [each for each in points().values() if each[0].startswith("dsrun.")])
def test_point_is_in_its_module(module: str, name: str) -> None:
    """A class or a function that the module defines or imports; a method may be inherited."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    defined = {each.name for each in tree.body if isinstance(each, ast.ClassDef | ast.FunctionDef)}
    imported = {
        alias.asname or alias.name for each in tree.body if isinstance(each, ast.ImportFrom) for alias in each.names
    }
    assert name.partition(".")[0] in defined | imported
