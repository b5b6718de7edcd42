"""A name of a class or alias means one thing: it is defined once in dsrun, and folders stay small."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import dsrun

PACKAGE = Path(dsrun.__file__).parent
MODULES_AT_MOST = 14
NAMED = re.compile(r"`(dsrun(?:\.\w+)+|\w+\.[A-Z]\w*[a-z]\w*)[`.]")
"""`dsrun.some.module`, `module.Class`."""

PRIVATE = re.compile(r"`(_[a-z]\w*)[`.(]")
OF_LIBRARIES = {
    "_cast_module_mixed_precision", "_find_legacy_repo_dir", "_load_from_state_dict", "_prepare_inputs",
    "_repo_cache_dir_path",
}  # fmt: skip


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


def words(source: str) -> Iterator[str]:
    """The comments and strings of a module, docstrings among them."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            yield token.string


def test_modules_and_classes_that_words_name_exist() -> None:
    modules = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    known = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in modules}
    folders = {name.rpartition(".")[0] for name in known}
    classes = {f"{path.stem}.{name}" for path, source in modules.items() for name in type_names(source)}
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


def test_private_names_in_words_are_of_their_module() -> None:
    gone = set()
    for module in PACKAGE.rglob("*.py"):
        source = module.read_text(encoding="utf-8")
        code = re.sub(r"`[^`]*`", "", source)
        named = {name for text in words(source) for name in PRIVATE.findall(text)}
        gone |= {name for name in named if not re.search(rf"\b{name}\b", code)}
    assert gone == OF_LIBRARIES


def test_no_folder_is_crowded() -> None:
    folders = defaultdict(list)
    for module in PACKAGE.rglob("*.py"):
        if module.name != "__init__.py":
            folders[str(module.parent.relative_to(PACKAGE))].append(module.stem)
    assert {name: len(found) for name, found in folders.items() if len(found) > MODULES_AT_MOST} == {}
