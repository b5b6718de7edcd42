"""Times and ranks in the notations of logging, glog, NCCL, SLURM and torch.distributed.run."""

import calendar
import time
from datetime import date, timedelta

import pytest

from dsrun.diagnosis.log.notation import last_time, rank_of, time_of

NOON = calendar.timegm((2026, 11, 21, 12, 0, 0))


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("2026-11-21 12:00:01,500 ERROR x: failed", NOON + 1.5),
        ('{"time": "2026-11-21T12:00:02.250Z"}', NOON + 2.25),
        ("[rank1]:[E1121 12:00:03.123456789 ProcessGroupNCCL.cpp:616] [Rank 1]", NOON + 3.123456789),
        ("  time      : 2026-11-21_12:00:04", NOON + 4.0),
        ("*** JOB 7 ON n CANCELLED AT 2026-11-21T12:00:05 DUE TO TIME LIMIT ***", NOON + 5.0),
        ("[rank1]:[E626 12:00:00.5 P.cpp:1]", calendar.timegm((2026, 6, 26, 12, 0, 0)) + 0.5),
    ],
)
def test_log_time_stamp_formats(line: str, seconds: float) -> None:
    assert time_of(line, year=2026) == pytest.approx(seconds, abs=1e-6)


@pytest.mark.parametrize("line", ["", "step 12:00", "12:00:01", "E11 12:00:03", "1.2026-11-21"])
def test_log_line_without_time_stamp(line: str) -> None:
    assert time_of(line) is None


def test_last_time_stamp_of_log_text() -> None:
    """The last time stamp of a text counts."""
    assert last_time("2026-11-21 11:00:00 a\n2026-11-21 12:00:00 b\nno time\n") == NOON
    assert last_time("no time\n") is None


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        ("[rank3]: KeyError", 3),
        ("[rank1]:[E626 06:24:44.9 P.cpp:616] [Rank 1] Watchdog", 1),
        ("[PG ID 0 PG GUID 0(default_pg) Rank 12] Exception", 12),
        ("  7: Traceback", 7),
        ("2026-11-21 ERROR x: rank 4 failed", 4),
        ("srun: error: n1: task 4: Killed", 4),
        ("failed (exitcode: 1) local_rank: 2 (pid: 12) of binary: python", 2),
        ("[default6]:ValueError: x", 6),
        ("[1,7]<stderr>:ValueError: x", 7),
        ("['python', 'train.py', '--local_rank=7'] exits with return code = 1", None),
        ("torchrun --node-rank 3 --node_rank=3 train.py", None),
        ("nothing", None),
        ("10:20:30 nothing", None),
    ],
)
def test_rank_named_in_log_line(line: str, rank: int | None) -> None:
    assert rank_of(line) == rank


def test_year_of_time_stamps_counts() -> None:
    """New Year's Eve comes before New Year; glog's times, without a year, are not in the future."""
    eve, new_year = time_of("2025-12-31 23:59:59 a"), time_of("2026-01-01 00:00:01 b")
    assert eve is not None
    assert new_year == eve + 2
    tomorrow = date.today() + timedelta(days=1)
    glog = time_of(f"[E{tomorrow:%m%d} 12:00:00.5 P.cpp:1]")
    assert glog is not None
    assert glog < time.time()
