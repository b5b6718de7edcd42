"""A name of a class or alias means one thing: it is defined once in dsrun, and folders stay small."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import dsrun

PACKAGE = Path(dsrun.__file__).parent
MODULES_AT_MOST = 14


def type_names(module: Path) -> Iterator[str]:
    """The classes, aliases and type variables that a module defines: CapWords, at module level."""
    for node in ast.parse(module.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            if isinstance(target, ast.Name) and target.id.lstrip("_")[:1].isupper() and not target.id.isupper():
                yield target.id


def test_every_type_name_has_one_home() -> None:
    homes = defaultdict(list)
    for module in sorted(PACKAGE.rglob("*.py")):
        for name in type_names(module):
            homes[name].append(str(module.relative_to(PACKAGE)))
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


def test_no_folder_is_crowded() -> None:
    folders = defaultdict(list)
    for module in PACKAGE.rglob("*.py"):
        if module.name != "__init__.py":
            folders[str(module.parent.relative_to(PACKAGE))].append(module.stem)
    assert {name: len(found) for name, found in folders.items() if len(found) > MODULES_AT_MOST} == {}
