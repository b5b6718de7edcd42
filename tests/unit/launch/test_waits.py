"""Every wait of supervisor, agent and coordinator has a limit, and stands in docs/architecture.md."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

from tests.waits import LOOPS, waits

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "dsrun" / "launch"
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def section(title: str) -> str:
    found = re.search(rf"^### {title}\n(.*?)(?=^##)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1]


def found_in_code() -> set[str]:
    return {
        f"{file.relative_to(PACKAGE).with_suffix('')}:{function} {call}"
        for file in PACKAGE.rglob("*.py")
        for function, call in waits(ast.parse(file.read_text(encoding="utf-8")))
    }


def test_waits_without_time_out_are_listed():
    """A new one fails here: give it a time-out, or say in that table what ends it."""
    listed = set(re.findall(r"^\| `([\w/]+:\w+ \w+)` \|", section("Without a time-out of their own"), re.MULTILINE))
    assert found_in_code() == listed


LIMITS = re.findall(r"^\| .*? \| ([\d.]+) s[^|]*\| .*?`([\w.]+):(\w+)` \|$", section("With a limit"), re.MULTILINE)


def test_limits_are_listed():
    assert len(LIMITS) == section("With a limit").count("\n| ") - 1


@pytest.mark.parametrize(("seconds", "module", "name"), LIMITS)
def test_limit_of_page_is_that_of_code(seconds, module, name):
    assert getattr(import_module(f"dsrun.{module}"), name) == float(seconds)


@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("while not done(): pass", LOOPS),
        ("while True:\n        look()", LOOPS),
        ("process.wait()", "wait"),
        ("thread.join()", "join"),
        ("channel.recv(1)", "recv"),
        ("selector.select()", "select"),
        ("os.read(fd, 1)", "read"),
        ("os.waitpid(pid, 0)", "waitpid"),
        ("subprocess.run(argv)", "run"),
        ("process.wait(5)", None),
        ("thread.join(timeout=5)", None),
        ("' '.join(words)", None),
        ("subprocess.run(argv, timeout=5)", None),
        ("file.read()", None),
    ],
)
def test_unlimited_wait_is_found(code, call):
    found = [name for _, name in waits(ast.parse(f"def f():\n    {code}\n"))]
    assert found == ([] if call is None else [call])
