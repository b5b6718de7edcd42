"""A name of a class or alias means one thing: it is defined once in dsrun, and folders stay small."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import dsrun

PACKAGE = Path(dsrun.__file__).parent
MODULES_AT_MOST = 14


def type_names(source: str) -> Iterator[str]:
    """The classes, aliases and type variables that a module defines: CapWords, at module level."""
    for node in statements(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            yield node.name
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names = [each for target in targets if target for each in ast.walk(target) if isinstance(each, ast.Name)]
        for name in [each.id for each in names if isinstance(each.ctx, ast.Store)]:
            if name.lstrip("_")[:1].isupper() and not name.isupper():
                yield name


def statements(block: ast.AST) -> Iterator[ast.stmt]:
    """The statements of a block, and of the blocks in it that are run as it is: of if, try, with and loops."""
    for node in ast.iter_child_nodes(block):
        if isinstance(node, ast.stmt):
            yield node
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.expr):
            yield from statements(node)


@pytest.mark.parametrize(
    "source",
    [
        "class Name: ...",
        "if sys.platform == 'linux':\n    pass\nelse:\n    class Name: ...",
        "try:\n    import x\nexcept ImportError:\n    Name = None",
        "A, (Name, *b) = rows",
        "Name: TypeAlias = int",
    ],
)
def test_type_names_at_module_level_are_found(source: str) -> None:
    assert "Name" in list(type_names(source))


def test_type_names_of_functions_and_classes_are_not() -> None:
    assert list(type_names("def f():\n    class Name: ...\nNAME = Name\nrows[Name] = 1")) == []


def test_every_type_name_has_one_home() -> None:
    homes = defaultdict(list)
    for module in sorted(PACKAGE.rglob("*.py")):
        for name in type_names(module.read_text(encoding="utf-8")):
            homes[name].append(str(module.relative_to(PACKAGE)))
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


def test_no_folder_is_crowded() -> None:
    folders = defaultdict(list)
    for module in PACKAGE.rglob("*.py"):
        if module.name != "__init__.py":
            folders[str(module.parent.relative_to(PACKAGE))].append(module.stem)
    assert {name: len(found) for name, found in folders.items() if len(found) > MODULES_AT_MOST} == {}
