"""What programs write before a message: times, ranks, labels of launchers, container runtimes and loggers."""

import calendar
import re
from datetime import date

# 2026-11-21 11:51:06,123   2026-11-21T11:51:06.123Z   2026/11/21 11:51:06
_ISO = re.compile(r"(?<!\d)(\d{4})[-/](\d\d)[-/](\d\d)[ T_](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
# [E1121 11:51:06.123456789 ProcessGroupNCCL.cpp:607]; older ones write October's first digits only where there are any
_GLOG = re.compile(r"\b[IWEF](\d?\d)(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?")
STAMP = r"\[?\d{4}[-/]\d\d[-/]\d\d[T _]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z| ?[+-]\d\d:?\d\d)?\]?"
_LABEL = (
    r"\[(?:rank|default|worker|Rank )\d+\]:? ?"  # torch's traceback hook, torch.distributed.run --tee
    r"|\[\d+,\d+\]<std(?:err|out)>: ?"  # mpirun --tag-output
    r"|\(\w* ?pid=\d+[^)]{0,60}\) ?"  # ray
    r"|[\w.-]+ +\| "  # docker compose
    r"| {0,4}\d{1,5}: "  # srun --label
    r"|[a-z][\w.-]*\d: "  # pdsh
)
# What may stand before an exception's name. A logger's level only where it says that something failed.
_PREFIX = re.compile(
    rf"(?:{STAMP}[ :|-]*|\[?\d\d:\d\d:\d\d(?:[.,]\d+)?\]?[ :|-]+|{_LABEL}"
    r"|(?:[\w.]+ +- +)?\[?(?:ERROR|CRITICAL|FATAL|E|stderr|err)\]?(?::[\w.]+:| *[-|:]+| +) *|[\w.]+:\d+ - | +)"
)
_RANK = re.compile(
    r"\[[Rr]ank ?(\d+)\]"  # [rank1]: of torch's traceback hook, [Rank 1] of ProcessGroupNCCL
    r"|\brank[ :=]+(\d+)\b"
    r"|\bRank (\d+)\]"  # [PG ID 0 PG GUID 0(default_pg) Rank 1]
    r"|\[\d+,(\d+)\]<std"
)
# srun --label
_TASK = re.compile(r"^\s{0,4}(\d{1,5}): ")
_LOCAL = re.compile(r"\btask (\d+):|\blocal[_ ]?rank[ :=]+(\d+)\b|\[default(\d+)\]:")


def time_of(line: str, *, year: int | None = None) -> float | None:
    """Seconds since 1970 by the line's last time stamp, taken as UTC; None without one.

    glog writes no year: there it is `year`, or else the one that makes it the latest time that is not in the future.
    """
    iso = [(match.start(), match.groups()) for match in _ISO.finditer(line)]
    glog = [(match.start(), (None, *match.groups())) for match in _GLOG.finditer(line)]
    if not iso and not glog:
        return None
    named, month, day, hour, minute, second, fraction = max(iso + glog)[1]
    if named is None:
        today = date.today()
        named = year or today.year - ((int(month), int(day)) > (today.month, today.day))
    moment = calendar.timegm((int(named), int(month), int(day), int(hour), int(minute), int(second)))
    return moment + float(f"0.{fraction or 0}")


def last_time(text: str) -> float | None:
    """The last time stamp in `text`, as `time_of`."""
    return next((time for line in reversed(text.splitlines()) if (time := time_of(line)) is not None), None)


def rank_of(line: str) -> int | None:
    """The rank that says this line, or that it is about: where it names none, its task or local rank; else None."""
    match = _RANK.search(line) or _TASK.match(line) or _LOCAL.search(line)
    return int(next(filter(None, match.groups()))) if match else None


def without_prefix(line: str) -> str:
    """`line` without time stamps, labels, indentation and the level of an error in front of it."""
    position = 0
    while (match := _PREFIX.match(line, position)) and match.end() > position:
        position = match.end()
    return line[position:]
