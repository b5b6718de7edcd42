"""What programs write before a message: times, ranks, labels of launchers, container runtimes and loggers."""

import calendar
from datetime import date

from dsrun.datafiles import toml_beside
from dsrun.system.patterns import patterns_beside

_PATTERNS = patterns_beside(__file__)
STAMP: str = toml_beside(__file__)["parts"]["stamp"]


def time_of(line: str, *, year: int | None = None) -> float | None:
    """Seconds since 1970 by the line's last time stamp, taken as UTC; None without one.

    glog writes no year: there it is `year`, or else the one that makes it the latest time that is not in the future.
    """
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
