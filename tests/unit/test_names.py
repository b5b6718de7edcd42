"""A name of a class or alias means one thing: it is defined once in dsrun, and folders stay small."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import dsrun

PACKAGE = Path(dsrun.__file__).parent
MODULES_AT_MOST = 14
NAMED = re.compile(r"`(dsrun(?:\.\w+)+|\w+\.[A-Z]\w*[a-z]\w*)[`.]")
"""`dsrun.some.module`, `module.Class`."""


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


def words(source: str) -> Iterator[str]:
    """The comments and strings of a module, docstrings among them."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            yield token.string


def test_modules_and_classes_that_words_name_exist() -> None:
    modules = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    known = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in modules}
    folders = {name.rpartition(".")[0] for name in known}
    classes = {f"{path.stem}.{name}" for path in modules for name in type_names(path)}
    stems = {path.stem for path in modules}
    gone = []
    for source in modules.values():
        for name in (name for text in words(source) for name in NAMED.findall(text)):
            above = name.rpartition(".")[0]
            if name.startswith("dsrun."):
                gone += [] if {name, above} & known or name in folders else [name]
            elif above in stems:
                gone += [] if name in classes else [name]
    assert gone == []


def test_no_folder_is_crowded() -> None:
    folders = defaultdict(list)
    for module in PACKAGE.rglob("*.py"):
        if module.name != "__init__.py":
            folders[str(module.parent.relative_to(PACKAGE))].append(module.stem)
    assert {name: len(found) for name, found in folders.items() if len(found) > MODULES_AT_MOST} == {}
