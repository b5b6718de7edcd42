"""Who runs in a folder whose lock nobody holds here, by what was written there, and when."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from dsrun.runs.folder import last_write, who_runs
from dsrun.system import host


def write(path: Path, text: str = "", *, age_s: float = 0.0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (time.time() - age_s,) * 2)


@pytest.mark.parametrize(
    ("holder", "age_s", "runs"),
    [
        ("another", 290, True),
        ("another", 310, False),
        (None, 5, False),  # this machine, which sees that its lock is free
    ],
)
def test_run_of_another_machine_counts_while_it_writes(
    tmp_path: Path, holder: str | None, age_s: float, runs: bool
) -> None:
    write(tmp_path / ".lock", f'{{"pid": 7, "host": "{holder or host.hostname()}", "since": "", "began": null}}')
    write(tmp_path / "events.jsonl", age_s=age_s)
    assert bool(who_runs(tmp_path)) is runs


def test_last_write_is_that_of_a_log_where_records_are_older(tmp_path: Path) -> None:
    assert last_write(tmp_path) is None
    write(tmp_path / "metrics.jsonl", age_s=60)
    write(tmp_path / "logs" / "node-0" / "rank-0.log", age_s=30)
    assert last_write(tmp_path) == pytest.approx(time.time() - 30, abs=10)


@pytest.mark.parametrize(("supervised_s", "runs"), [(5, False), (20, True)], ids=["of this run", "of an earlier run"])
def test_killed_rank_does_not_outlive_its_supervisor(tmp_path: Path, supervised_s: float, runs: bool) -> None:
    """The lock of a rank that was killed names it for ever; its supervisor has emptied its own at the end."""
    write(tmp_path / ".lock", '{"pid": 7, "host": "another", "since": "", "began": null}', age_s=10)
    write(tmp_path / ".supervisor", age_s=supervised_s)
    write(tmp_path / "events.jsonl")
    assert bool(who_runs(tmp_path)) is runs
