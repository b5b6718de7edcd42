"""Which rank a hang began with: the ranks grouped by where they stand, and those that stand apart.

"30 of 32 ranks in all_reduce #481; ranks 5 and 6 in DataLoader.__next__"
"""

import io
import pickle
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsrun.diagnosis.stacks import StackPlace, place_of
from dsrun.system.files import parse_json, text_of_file

# What waits for other ranks is not what they wait for.
_WAITING = ("collective", "gpu")
_UNSEEN = "unknown"
_ADJECTIVES = ("stopped", "without")
_SHOWN_RANKS = 6
_SHOWN_GROUPS = 4
_RANK_FILE = re.compile(r"rank-(\d+)\.(?:stacks|proc)\.txt")
_DUMP_FILE = re.compile(r"rank[-_](\d+)(?:\.json)?$")


@dataclass(frozen=True)
class RecordedOperation:
    """The oldest operation that is not done: its name and number, in a process group ("0": of all ranks).

    `enqueued` is the number of the last operation that the rank has begun in that group."""

    operation: str
    number: int
    group: str
    enqueued: int


class _PlainUnpickler(pickle.Unpickler):
    """Lists, dictionaries, text and numbers only: a pickle that names anything else is rejected."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is not allowed")


def parse_dump(content: bytes) -> RecordedOperation | None:
    """What the dump of one rank says; None where it cannot be read, or no operation is waited for.

    Torch writes it when the rank hangs: a pickle, or JSON, of one object (torch/csrc/distributed/c10d/
    FlightRecorder*.hpp): "entries", a list of operations with "collective_seq_id", "profiling_name"
    ("nccl:all_reduce"), "state" and "process_group"; "pg_status", by process group the numbers of the operations last
    enqueued, started and completed."""
    try:
        found = parse_json(content) if content.lstrip()[:1] == b"{" else _PlainUnpickler(io.BytesIO(content)).load()
    except Exception:  # damaged pickles raise anything
        return None
    entries = found.get("entries") if isinstance(found, Mapping) else None
    entries = [each for each in entries if isinstance(each, Mapping)] if isinstance(entries, list) else []
    waiting = [each for each in entries if each.get("state") != "completed" and not each.get("is_p2p")]
    numbered = [each for each in waiting if isinstance(each.get("collective_seq_id"), int)]
    if not numbered:
        return None
    # torch numbers process groups as they are made, so the one of all ranks is 0.
    first = min(numbered, key=lambda each: (_group_of(each) != "0", each["collective_seq_id"]))
    number, group = first["collective_seq_id"], _group_of(first)
    same = [each["collective_seq_id"] for each in numbered if _group_of(each) == group]
    # all_gather_into_tensor is "nccl:_all_gather_base" there.
    operation = str(first.get("profiling_name", "")).rpartition(":")[2].removeprefix("_") or "a collective operation"
    return RecordedOperation(operation=operation, number=number, group=group, enqueued=max(same))


def _group_of(entry: Mapping[str, Any]) -> str:
    """The name of an operation's process group; torch writes a pair of name and description."""
    named = entry.get("process_group")
    return str(named[0]) if isinstance(named, (list, tuple)) and named else str(entry.get("pg_id", "0"))


@dataclass(frozen=True)
class RankStanding:
    """Where one rank stands; `recorded` is what NCCL's flight recorder says, if it ran."""

    rank: int
    place: StackPlace
    recorded: RecordedOperation | None = None


@dataclass(frozen=True)
class HangGroup:
    """The ranks that stand at one place, by its name."""

    name: str
    ranks: tuple[int, ...]


def read_standings(folder: Path) -> list[RankStanding]:
    """Where each rank stands whose stacks, or whose state by the kernel, are in a folder of evidence."""
    ranks = sorted({int(match[1]) for file in folder.glob("rank-*.txt") if (match := _RANK_FILE.fullmatch(file.name))})
    dumps = {
        int(match[1]): parse_dump(file.read_bytes())
        for file in folder.iterdir()
        if (match := _DUMP_FILE.search(file.name)) and file.is_file()
    }
    texts = {rank: [text_of_file(folder / f"rank-{rank}.{kind}.txt") for kind in ("stacks", "proc")] for rank in ranks}
    return [RankStanding(rank, place_of(*texts[rank]), dumps.get(rank)) for rank in ranks]


def outliers(standings: Sequence[RankStanding]) -> tuple[int, ...]:
    """The ranks that the others wait for; () where the stacks do not tell.

    In this order: ranks that are stopped; ranks that wait for no other rank, while others do; ranks that have begun
    fewer operations; the ranks in an operation that most are not in, or that most have called elsewhere; where no rank
    seems to wait, those that are not where most are."""
    stopped = [each.rank for each in standings if each.place.kind == "stopped"]
    if stopped:
        return tuple(stopped)
    waiting = [each for each in standings if _waits(each)]
    apart = [each.rank for each in standings if not _waits(each) and each.place.kind != _UNSEEN]
    if apart and waiting:
        return tuple(apart)
    unseen = tuple(each.rank for each in standings if each.place.kind == _UNSEEN)
    operations = {each.rank: each.place.name for each in waiting}
    calls = {each.rank: f"{each.place.name} {each.place.site}" for each in waiting}
    found = _behind(standings) or _fewer(operations) or _fewer(calls)
    if not waiting:
        # On a GPU a rank may wait for others in any line that reads a result.
        found = _fewer({each.rank: each.place.name for each in standings if each.rank in apart})
    return found or (unseen if len(unseen) < len(waiting) else ())


def _waits(each: RankStanding) -> bool:
    """Whether a rank waits for others: in a collective operation or, by the flight recorder, for one on the GPU while
    its program reads a result."""
    return each.place.kind in _WAITING or (each.recorded is not None and each.place.kind in ("code", "lock"))


def _behind(standings: Sequence[RankStanding]) -> tuple[int, ...]:
    """The ranks that have begun fewer operations in the group of all ranks, as the flight recorder counts."""
    begun = {each.rank: each.recorded.enqueued for each in standings if each.recorded and each.recorded.group == "0"}
    least = min(begun.values(), default=0)
    behind = tuple(rank for rank, number in begun.items() if number == least)
    return behind if 2 * len(behind) < len(begun) else ()


def _fewer(places: Mapping[int, str]) -> tuple[int, ...]:
    """The ranks that are not where more than half of them are; () where there is no such place."""
    most, count = next(iter(Counter(places.values()).most_common(1)), ("", 0))
    return tuple(rank for rank, place in places.items() if place != most) if 2 * count > len(places) else ()


def groups(standings: Sequence[RankStanding]) -> list[HangGroup]:
    """The ranks by place, the largest group first. Where two places of one name differ by their call, it is added."""
    apart = outliers(standings)
    split = len({each.place.name for each in standings}) == 1 and apart
    named: dict[str, list[int]] = {}
    for each in standings:
        name = each.place.name
        if each.recorded and _waits(each):
            name = f"{each.recorded.operation} #{each.recorded.number}"
        elif split and each.place.site not in name:
            name += f" called by {each.place.site}"
        named.setdefault(name, []).append(each.rank)
    found = [HangGroup(name, tuple(ranks)) for name, ranks in named.items()]
    return sorted(found, key=lambda group: (-len(group.ranks), group.ranks))


def summary(standings: Sequence[RankStanding]) -> str:
    """One line: how many ranks stand where, the ranks of small groups by number; "" where nothing is known."""
    known = [each for each in standings if each.place.kind != _UNSEEN]
    if not known:
        return ""
    parts = []
    found = groups(standings)
    for index, group in enumerate(found[:_SHOWN_GROUPS]):
        many = index == 0 and len(group.ranks) > 1
        who = f"{len(group.ranks)} of {len(standings)} ranks" if many else name_ranks(group.ranks)
        parts.append(f"{who} {'' if group.name.startswith(_ADJECTIVES) else 'in '}{group.name}")
    more = sum(len(group.ranks) for group in found[_SHOWN_GROUPS:])
    return "; ".join(parts) + (f"; {more} more elsewhere" if more else "")


def name_ranks(ranks: Collection[int]) -> str:
    """ "rank 5", "ranks 5 and 6", "ranks 1, 2, 3, 4, 5, 6 and 12 more"."""
    shown = [str(rank) for rank in sorted(ranks)]
    if len(shown) == 1:
        return f"rank {shown[0]}"
    if len(shown) > _SHOWN_RANKS:
        return f"ranks {', '.join(shown[:_SHOWN_RANKS])} and {len(shown) - _SHOWN_RANKS} more"
    return f"ranks {', '.join(shown[:-1])} and {shown[-1]}"


def blamed(standings: Sequence[RankStanding], silent: int) -> int:
    """The rank to blame: the one that has been silent, if it is an outlier or there is none, else the first of them."""
    apart = outliers(standings)
    return silent if not apart or silent in apart else apart[0]
