"""dsrun/findings/show.py lays findings out, for every command: levels, places, codes, fixes, totals, errors."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click
import pytest

import dsrun
from dsrun.errors import MissingError
from dsrun.findings.finding import Finding, errors_in, has_errors, worst_first
from dsrun.findings.show import (
    finding_lines,
    in_english,
    refusal,
    shown,
    status_width,
    status_word,
    table_lines,
    total_line,
)
from dsrun.messages import Message
from dsrun.system.terminal.display import cells

PACKAGE = Path(dsrun.__file__).parent
_BESIDE = ("where", "code", "fix")
_PRINTERS = {
    "findings/show.py",
    "errors.py",  # an error has a message and a fix too, and prints itself
    "zero/generate/explain.py",  # a note of `dsrun config`: the key alone, as there is no file with lines
}
ERROR = Finding(level="error", code="e", message=Message("no step was logged"), fix="mend it", where="f:3")
REMARK = Finding(level="info", code="i", message="x\x1b]0;title\x07")


def plain(lines: Iterator[str]) -> list[str]:
    return [click.unstyle(line) for line in lines]


def test_lines_of_findings() -> None:
    assert plain(finding_lines([ERROR, REMARK])) == [
        "error f:3: no step was logged [e]", "    mend it", r"info: x\x1b]0;title\x07 [i]",
    ]  # fmt: skip
    assert plain(finding_lines([ERROR], places=False))[0] == "error: no step was logged [e]"
    assert shown(ERROR).line == "f:3: no step was logged [e] (mend it)"
    assert shown(REMARK).line.endswith(" [i]")


def test_levels_are_coloured_unless_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = next(finding_lines([ERROR]))
    assert coloured != click.unstyle(coloured)
    assert coloured.startswith("\x1b[31m")
    words = [status_word(each) for each in ("fail", "warn", "pass", "skip")]
    assert [word[: word.index("m") + 1] for word in words] == ["\x1b[31m", "\x1b[33m", "\x1b[32m", "\x1b[90m"]
    monkeypatch.setenv("NO_COLOR", "1")
    assert next(finding_lines([ERROR])) == click.unstyle(coloured)


def test_words_are_chinese_and_equally_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSRUN_LANG", "zh")
    assert plain(finding_lines([ERROR]))[0].startswith("错误 f:3: ")
    words = {click.unstyle(status_word(each)) for each in ("fail", "warn", "pass", "skip")}
    assert len(words) == 4
    assert not any(word.isascii() for word in words)
    assert {cells(word) for word in words} == {status_width()}
    assert in_english(ERROR).line == "f:3: no step was logged [e] (mend it)"
    assert total_line("f", [ERROR]).startswith("f：")


def test_total_counts_each_level() -> None:
    assert total_line("f", [REMARK, ERROR, ERROR]) == "f: 2 errors, 1 remark"
    assert total_line("f", []) == "f: no findings"


def test_table_has_the_fix_of_a_problem_only() -> None:
    assert list(table_lines(ERROR, None)) == ["f:3: no step was logged", "-> mend it"]
    assert list(table_lines(replace(ERROR, level="info"), None)) == ["f:3: no step was logged"]


@pytest.mark.parametrize(("columns", "lines"), [(None, 1), (30, 2), (50, 1)])
def test_table_is_wrapped(columns: int | None, lines: int) -> None:
    assert len(list(table_lines(Finding(level="info", code="i", message="word " * 10), columns))) == lines


def test_refusal_has_all_errors_each_with_its_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSRUN_LANG", "zh")
    error = refusal([ERROR, REMARK], before="--flag: ", kind=MissingError)
    assert isinstance(error, MissingError)
    assert error.message.startswith("--flag: f:3: no step was logged [e] (mend it); also: ")
    assert error.fix is None
    assert refusal([ERROR]).fix == "mend it"


def test_order_and_errors_of_findings() -> None:
    assert worst_first([REMARK, ERROR]) == [ERROR, REMARK]
    assert errors_in([REMARK, ERROR]) == [ERROR]
    assert (has_errors([REMARK, ERROR]), has_errors([REMARK])) == (True, False)


def put_together(source: str) -> Iterator[int]:
    """Lines with a text that has the message of an object beside its fix, code or place, at any depth of an f-string,
    of + and %, or of what formats, joins or prints."""
    for node in ast.walk(ast.parse(source)) if ".message" in source else ():
        if not isinstance(node, ast.expr):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""
        prints = name in ("str", "format", "join", "echo", "secho", "write") or name.startswith("print")
        if prints or isinstance(node, ast.JoinedStr | ast.BinOp):
            parts = {(ast.dump(each.value), each.attr) for each in ast.walk(node) if isinstance(each, ast.Attribute)}
            if any((of, "message") in parts and (of, other) in parts for of, other in parts if other in _BESIDE):
                yield node.lineno


def laid_out_by_itself(source: str) -> Iterator[int]:
    """Lines that lay a finding out without dsrun/findings/show.py: translated(x.message), f"[{x.code}]";
    any(x.level == "error"), and a table of the levels' order."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            of_finding = {each.attr for each in node.args if isinstance(each, ast.Attribute)}
            if node.func.id == "translated" and of_finding & {"message", "fix", "where", "level"}:
                yield node.lineno
            compared = [each.left for arg in node.args for each in ast.walk(arg) if isinstance(each, ast.Compare)]
            if node.func.id in ("any", "all") and any(getattr(each, "attr", "") == "level" for each in compared):
                yield node.lineno
        elif isinstance(node, ast.JoinedStr):
            for text, value in zip(node.values, node.values[1:], strict=False):
                bracket = isinstance(text, ast.Constant) and str(text.value).endswith("[")
                if bracket and isinstance(value, ast.FormattedValue) and getattr(value.value, "attr", "") == "code":
                    yield node.lineno
        elif isinstance(node, ast.Dict):
            keys = [each.value for each in node.keys if isinstance(each, ast.Constant)]
            numbers = [each for each in node.values if isinstance(each, ast.Constant) and isinstance(each.value, int)]
            if keys[:2] == ["error", "warning"] and numbers:
                yield node.lineno


def test_no_module_puts_a_message_beside_its_fix() -> None:
    found = [
        f"{name}:{line}"
        for module in sorted(PACKAGE.rglob("*.py"))
        if (name := str(module.relative_to(PACKAGE))) not in _PRINTERS
        for line in put_together(module.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        'f"{x.message} ({x.fix})"',
        'x.level + ": " + x.message + " [" + x.code + "]"',
        'f"{x.where}: {translated(str(x.message))}"',
        '"{}: {}".format(x.where, x.message)',
        '": ".join([x.where, x.message])',
        "print_line(f'{x.message}', x.fix)",
    ],
)
def test_message_beside_its_fix_is_found(source: str) -> None:
    assert list(put_together(source))
    assert list(put_together(source.replace("x.message", "y.message"))) == []


def test_no_module_lays_findings_out_by_itself() -> None:
    found = [
        f"{module.relative_to(PACKAGE)}:{line}"
        for module in sorted(PACKAGE.rglob("*.py"))
        if module.parent.name != "findings"
        for line in laid_out_by_itself(module.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "translated(finding.message)",
        'f"{text} [{each.code}]"',
        'any(each.level == "error" for each in found)',
        'order = {"error": 0, "warning": 1, "info": 2}',
    ],
)
def test_layout_by_itself_is_found(source: str) -> None:
    assert list(laid_out_by_itself(source))
