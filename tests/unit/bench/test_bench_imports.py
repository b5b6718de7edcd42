"""What bench/ and tools/ take from this checkout is there, also what a function imports when it is called."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
FILES = [file for folder in ("bench", "tools") for file in sorted((ROOT / folder).rglob("*.py"))]


def source(module):
    """The file of a module of this checkout; None for any other."""
    path = ROOT.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


@cache
def names(file):
    """What a module's own statements define or import."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {each.asname or each.name for each in node.names}
    return found


def missing(tree):
    """`module.name` of each import, and of each attribute of an imported module, that its file does not have."""
    for function in [tree, *(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))]:
        modules = {}
        for node in ast.walk(function):
            if isinstance(node, ast.ImportFrom) and source(node.module or ""):
                for each in node.names:
                    if source(f"{node.module}.{each.name}"):
                        modules[each.asname or each.name] = f"{node.module}.{each.name}"
                    elif each.name not in names(source(node.module)):
                        yield f"{node.module}.{each.name}"
        if function is tree:
            continue
        for node in ast.walk(function):
            module = modules.get(getattr(getattr(node, "value", None), "id", None)) if hasattr(node, "attr") else None
            if module and node.attr not in names(source(module)) and not source(f"{module}.{node.attr}"):
                yield f"{module}.{node.attr}"


def test_imports_of_benchmarks_and_tools_exist():
    assert len(FILES) > 40
    found = {(file.name, name) for file in FILES for name in missing(ast.parse(file.read_text("utf-8")))}
    assert found == set()


def test_moved_function_is_found():
    """Where a function looks it up in the module that had it."""
    code = "def f():\n from bench import processes as p\n from bench.timing import median, gone\n p.run()\n p.moved()\n"
    assert set(missing(ast.parse(code))) == {"bench.processes.moved", "bench.timing.gone"}
