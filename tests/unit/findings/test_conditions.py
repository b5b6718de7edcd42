"""Findings whose conditions are rows of a TOML file."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsrun.findings.finding import findings_where, first_where

ROWS = """
[terms]
gib = "free / 2**30"

[[shm]]
key = "shm_small.tight"
when = "free < wanted"
fix = "'remove {}'.format(name)"
values = { free = "gib", total = "1.0", wanted = "wanted / 2**30", ranks = "text_of('gpu_memory_taken.wait')" }

[[shm]]
key = "inodes_few"
when = "len(name) > 3"
level = "'error' if left < 5 else 'warning'"
values = { folder = "name" }

[[shm]]
key = "inodes"
"""


@pytest.fixture
def module(tmp_path: Path) -> str:
    (tmp_path / "conditions.toml").write_text(ROWS)
    return str(tmp_path / "module.py")


def test_rows_that_hold_have_their_values_level_and_fix(module):
    found = list(findings_where(module, "shm", free=2**29, wanted=2**31, name="many", left=4))
    assert [each.code for each in found] == ["shm_small", "inodes_few", "inodes"]
    assert found[0].message.startswith("/dev/shm has 0.5 of 1.0 GiB free, 2 GiB")
    assert found[0].fix == "remove many"
    assert [each.level for each in found] == ["warning", "error", "info"]


def test_first_row_alone(module):
    (only,) = first_where(module, "shm", free=2**31, wanted=0, name="all", left=7)
    assert only.code == "inodes"
    assert only.message == "7 more files can be created"


def test_name_that_nobody_gives_is_an_error(module):
    with pytest.raises(NameError):
        list(findings_where(module, "shm", free=0, wanted=1))
