"""What verify-wheel and build-wheel print of findings in Chinese."""

from __future__ import annotations

import pytest

from dsrun.errors import UsageError
from dsrun.findings.finding import Finding
from dsrun.findings.show import shown
from dsrun.messages import Message
from dsrun.system.terminal.display import aligned_rows, cells
from dsrun.wheel.compile.context import BuildDiagnostics
from dsrun.wheel.platform.ops import missing, op_table

FINDING = Finding(level="error", code="library_missing", message=Message("install {what}", what="a"), fix="see its log")


@pytest.fixture(autouse=True)
def _chinese(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSRUN_LANG", "zh")


def test_columns_of_wide_characters_are_aligned() -> None:
    lines = list(aligned_rows([("node", "result"), ("节点一", "x")]))
    assert {cells(line[: line.rindex(word)]) for line, word in zip(lines, ("result", "x"), strict=True)} == {8}


def test_note_is_translated_and_error_is_not() -> None:
    assert shown(FINDING).line == "安装 a [library_missing] (查看它的日志)"
    with pytest.raises(UsageError, match=r"^install a \[library_missing\] \(see its log\); also: install a "):
        BuildDiagnostics().add([FINDING, FINDING])


def test_missing_need_names_what_is_missing() -> None:
    op = next(each for each in op_table("0.19.8") if each.name == "async_io" and "libaio" in each.needs)
    (found,) = missing([op], lambda _: False)
    assert shown(found).message == "没有 libaio 的头文件和库，无法构建 async_io"
