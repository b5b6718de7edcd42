"""Which rank did not join a collective operation that the others waited in, as their logs tell."""

import re
from collections import defaultdict
from collections.abc import Iterable

from dsrun.diagnosis.log.notation import rank_of

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
    all that report have issued as many, it is the one rank between them that reports nothing.
    """
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
