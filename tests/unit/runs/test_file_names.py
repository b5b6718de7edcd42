"""The names of a run folder's files stand in runs/ alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import dsrun
from dsrun.runs.folder import RunFolder

ROOT = Path(dsrun.__file__).parent
RUN = RunFolder(Path("run"))
INSIDE = {name: getattr(RUN, name) for name, each in vars(RunFolder).items() if type(each).__name__ == "_Inside"}
# Words that mean other things too: they are a run folder's behind a / only.
WORDS = {RUN.model.name, RUN.adapter.name, RUN.logs.name, RUN.lock.name}
FILES = {path.name for path in INSIDE.values()} - WORDS
ELSEWHERE = {
    "cli/completion.py: */run.json": "a pattern, in a command that the shell waits for at each key",
    "demo/build_demo.py: model": "of the demo's folder",
    "hub/modelscope.py: .lock": "of ModelScope's cache",
    "launch/supervisor/supervise.py: recipe.json": "in the supervisor's temporary folder",
    "train/checkpoint/elastic.py: .lock": "of .universal",
}


def literals(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.rpartition("/")[2] in FILES:
            yield node.value
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and isinstance(node.right, ast.Constant):
            yield from {node.right.value} & WORDS


def test_names_of_files_in_runs_alone():
    """Others ask RunFolder for them."""
    found = {
        f"{path.relative_to(ROOT).as_posix()}: {name}"
        for path in ROOT.rglob("*.py")
        if path.parent != ROOT / "runs"
        for name in literals(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == set(ELSEWHERE)


def test_results_are_all_but_logs_and_lock():
    """A new file of a run is set aside by --resume never, or named here."""
    assert set(RUN.results) == set(INSIDE.values()) - {RUN.logs, RUN.lock, RUN.supervisor_lock}
