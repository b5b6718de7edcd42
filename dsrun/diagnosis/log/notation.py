"""What programs write before a message: times, ranks, labels of launchers, container runtimes and loggers; and which
rank did not join a collective operation that the others waited in, as their logs tell."""

import calendar
import re
from collections import defaultdict
from collections.abc import Iterable
from datetime import date

from dsrun.datafiles import patterns_beside, toml_beside

_PATTERNS = patterns_beside(__file__)
STAMP: str = toml_beside(__file__)["parts"]["stamp"]


def time_of(line: str, *, year: int | None = None) -> float | None:
    """Seconds since 1970 by the line's last time stamp, taken as UTC; None without one.

    glog writes no year: there it is `year`, or else the one that makes it the latest time that is not in the future."""
    iso = [(match.start(), match.groups()) for match in _PATTERNS["iso"].finditer(line)]
    glog = [(match.start(), (None, *match.groups())) for match in _PATTERNS["glog"].finditer(line)]
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
    match = _PATTERNS["rank"].search(line) or _PATTERNS["task"].match(line) or _PATTERNS["local"].search(line)
    return int(next(filter(None, match.groups()))) if match else None


def without_prefix(line: str) -> str:
    """`line` without time stamps, labels, indentation and the level of an error in front of it."""
    position = 0
    while (match := _PATTERNS["prefix"].match(line, position)) and match.end() > position:
        position = match.end()
    return line[position:]


# monitored_barrier; torch's desync report; a store that names who is missing
_NAMED = re.compile(
    r"[Rr]anks? (\d+)(?:, \d+)* failed to pass monitoredBarrier"
    r"|\[(\d+)(?:, \d+)*\] finished collective #?\d+, but didn't join"
    r"|[Mm]issing ranks?:? *\[?(\d+)"
)
# The newest operation that a rank has issued says more than the one that timed out.
_ISSUED = re.compile(r"last enqueued (?:NCCL )?work: (\d+)")
_TIMED_OUT = re.compile(r"SeqNum=(\d+)")
_GROUP = re.compile(r"\bPG (?:ID )?(\d+)")


def rank_behind(lines: Iterable[str]) -> int | None:
    """The rank that did not join the operation the others waited in; None where the lines do not tell.

    Every rank numbers the operations of a process group alike, so the one that has issued the fewest is behind. If
    all that report have issued as many, it is the one rank between them that reports nothing."""
    lines = list(lines)
    for line in lines:
        if match := _NAMED.search(line):
            return int(next(filter(None, match.groups())))
    for pattern in (_ISSUED, _TIMED_OUT):
        groups: dict[str, dict[int, int]] = defaultdict(dict)
        for line in lines:
            number, rank, group = pattern.search(line), rank_of(line), _GROUP.search(line)
            if number and rank is not None:
                issued = groups[group[1] if group else "0"]
                issued[rank] = max(int(number[1]), issued.get(rank, 0))
        for issued in groups.values():
            if (rank := _slowest(issued)) is not None:
                return rank
    return None


def _slowest(issued: dict[int, int]) -> int | None:
    if len(issued) < 2:
        return None
    fewest = min(issued.values())
    behind = [rank for rank, number in issued.items() if number == fewest]
    if len(behind) == 1:
        return behind[0]
    silent = set(range(max(issued))) - set(issued)
    return silent.pop() if len(behind) == len(issued) and len(silent) == 1 else None
