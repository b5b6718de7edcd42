"""A request to save a checkpoint and exit: which signal, where and when; and the stop file, which carries it between
the processes of one machine."""

import json
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from dsrun.runs.records import utc_now
from dsrun.system.files import parse_json, replacing

UNKNOWN_SIGNAL = "a signal"
"""For a stop file without content: a full disk, or a program that only touched it."""
REGROUP = "the return of a node"
"""For a request that the ranks save and leave, to be started again at once on more machines (--elastic)."""


@dataclass(frozen=True)
class StopRequest:
    """`signal` came to `rank` (None: the supervisor, the agent or the batch script) on `host` at `time` (ISO 8601)."""

    signal: str = UNKNOWN_SIGNAL
    rank: int | None = None
    host: str | None = None
    time: str | None = None

    @classmethod
    def now(cls, signal: str, rank: int | None = None) -> Self:
        """A request that came to this machine at this moment. For signal handlers, too."""
        return cls(signal, rank, socket.gethostname(), utc_now())

    @property
    def regroups(self) -> bool:
        """Whether the run goes on at once."""
        return self.signal == REGROUP

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is left once the run goes on on more machines: it came from the run itself. A node may
        see that its ranks have left before it hears why."""
        return self.signal in (REGROUP, UNKNOWN_SIGNAL)

    def yields_to(self, other: "StopRequest | None") -> bool:
        """Whether `other`, which came later, is the one that counts: somebody's wish, where this is the run's own."""
        return self.regroups and other is not None and not other.is_over

    def __str__(self) -> str:
        """ "SIGTERM", "SIGTERM to gpu07" of another machine, "SIGTERM to rank 3 on gpu07"."""
        if self.rank is not None:
            return f"{self.signal} to rank {self.rank} on {self.host}"
        return self.signal if self.host in (None, socket.gethostname()) else f"{self.signal} to {self.host}"

    @classmethod
    def from_dict(cls, found: object) -> Self:
        """The inverse of `asdict`; what is not there or of another type is left out."""
        if not isinstance(found, Mapping):
            return cls()
        known = {name: found.get(name) for name in ("signal", "rank", "host", "time")}
        texts = {name: value for name, value in known.items() if name != "rank" and isinstance(value, str)}
        rank = known["rank"]
        return cls(**texts, rank=rank if isinstance(rank, int) else None)


def first_request(known: Iterable[StopRequest | None]) -> StopRequest:
    """The earliest request, one with a time if there is one."""
    found = [each for each in known if each is not None]
    return min(found, key=lambda each: (each.time is None, each.time or ""), default=StopRequest())


def write_stop_file(file: Path, request: StopRequest) -> None:
    """Write the request; the first one stays.

    For signal handlers: a full disk must not raise in them. A file without content is still a request.
    """
    with suppress(OSError):
        if not file.exists():
            # In one step: whoever sees the file sees what is in it.
            with replacing(file) as partial, suppress(OSError):
                partial.write_text(json.dumps(asdict(request)))


def read_stop_file(file: Path) -> StopRequest | None:
    """The request in a stop file, which may also hold the signal's name alone; None if there is none, or it cannot be
    read now."""
    try:
        text = file.read_text(errors="replace").strip()
    except OSError:
        return None
    try:
        found = parse_json(text)
    except ValueError:
        return StopRequest(text or UNKNOWN_SIGNAL)
    return StopRequest.from_dict(found)
