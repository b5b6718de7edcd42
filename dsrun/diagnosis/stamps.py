"""The times and ranks that log lines name, in the notations of Python's logging, glog (PyTorch), NCCL and SLURM."""

from __future__ import annotations

import re

# 2026-11-21 11:51:06,123   2026-11-21T11:51:06.123Z
_ISO = re.compile(r"(?<!\d)\d{4}-(\d\d)-(\d\d)[ T_](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
# [E1121 11:51:06.123456789 ProcessGroupNCCL.cpp:607]; older ones write October's first digits only where there are any
_GLOG = re.compile(r"\b[IWEF](\d?\d)(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?")
_RANK = re.compile(
    r"\[[Rr]ank ?(\d+)\]"  # [rank1]: of torch's traceback hook, [Rank 1] of ProcessGroupNCCL
    r"|\brank[ :=]+(\d+)\b"
    r"|\bRank (\d+)\]"  # [PG ID 0 PG GUID 0(default_pg) Rank 1]
)
# srun --label
_TASK = re.compile(r"^\s{0,4}(\d{1,5}): ")
_FIRST = re.compile(r"Root Cause \(first observed failure\):(?:.|\n){0,300}?\brank\s*:\s*(\d+)")
_MONTH = 31


def time_of(line: str) -> float | None:
    """Seconds since New Year by the line's last time stamp, every month taken for 31 days; None without one.

    glog writes no year, so the times of one run compare unless it goes over New Year.
    """
    found = [match for form in (_ISO, _GLOG) for match in form.finditer(line)]
    if not found:
        return None
    month, day, hour, minute, second, fraction = max(found, key=lambda match: match.start()).groups()
    days = int(month) * _MONTH + int(day)
    return ((days * 24 + int(hour)) * 60 + int(minute)) * 60 + int(second) + float(f"0.{fraction or 0}")


def last_time(text: str) -> float | None:
    """The last time stamp in `text`, as `time_of`."""
    return next((time for line in reversed(text.splitlines()) if (time := time_of(line)) is not None), None)


def rank_of(line: str) -> int | None:
    """The rank that says this line, or that it is about; None where it names none."""
    match = _RANK.search(line) or _TASK.match(line)
    return int(next(filter(None, match.groups()))) if match else None


def first_rank(text: str) -> int | None:
    """The rank that torch.distributed.run's table names as the first to fail, in the last table of `text`."""
    found = _FIRST.findall(text)
    return int(found[-1]) if found else None
