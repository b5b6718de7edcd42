"""What is added to a file that others write, and the end of a long one."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsrun.events import kind_of
from dsrun.runs.records import finite, records_in, revive, step_of, whole
from dsrun.system.files import open_regular

# Evaluations write lines without a loss; between two steps' lines there are never a mebibyte of them.
_LAST = 1 << 20
# Of a line that never ends, so much is held; what comes later of it is no record.
_LONGEST_LINE = 64 << 20


class FileTail:
    """The bytes that are added to a file. One that was replaced or cut short is read from its beginning."""

    def __init__(
        self,
        path: Path,
        *,
        begin: int | None = 0,
        whole: int | None = None,
        tail: int = 0,
        most: int | None = None,
        piece: int = -1,
    ) -> None:
        """What lies before `begin`, None: before the present end, is not read. Of a file longer than `whole` bytes, the
        first read takes the `tail` at its end; of what is added later, each read the last `most` bytes, and of these at
        most the first `piece`: `behind` is what it has left to the next one, `skipped` what none has read."""
        self.path = path
        self.offset = self.behind = self.skipped = 0
        self._piece = piece
        self._most = most
        self._whole, self._tail = whole, tail
        self._file: tuple[int, int] | None = None
        if begin != 0:
            with suppress(OSError):
                found = path.stat()
                self._file, self.offset = (found.st_dev, found.st_ino), found.st_size if begin is None else begin

    def read(self) -> tuple[bytes, bool]:
        """The new bytes, and whether they are those of another file. Raises OSError."""
        with open_regular(self.path) as file:
            found = os.fstat(file.fileno())
            is_new = self._file != (found.st_dev, found.st_ino) or found.st_size < self.offset
            if is_new:
                is_long = self._whole is not None and found.st_size > self._whole
                self.offset = max(0, found.st_size - self._tail) if is_long else 0
                self._file = (found.st_dev, found.st_ino)
            if self._most is not None:
                self.skipped += max(0, found.st_size - self._most - self.offset)
                self.offset = max(self.offset, found.st_size - self._most)
            file.seek(self.offset)
            added = file.read(self._piece)
        self.offset += len(added)
        self.behind = max(0, found.st_size - self.offset)
        return added, is_new


class LineTail:
    """The whole lines that are added to a file; half a line waits for its end."""

    def __init__(
        self, path: Path, *, begin: int | None = 0, whole: int | None = None, tail: int = 0, samples: int = 0
    ) -> None:
        """As a FileTail; where only a tail is read, so are `samples` lines of what lies before it."""
        self._tail = FileTail(path, begin=begin, whole=whole, tail=tail)
        self._samples = samples
        self._torn = b""

    def read(self) -> tuple[list[bytes], bool]:
        """The new lines, and whether they are those of another file. Raises OSError."""
        added, is_new = self._tail.read()
        begin = self._tail.offset - len(added)
        *lines, self._torn = ((b"" if is_new else self._torn) + added).split(b"\n")
        if is_new and begin > 0:  # within a line
            lines[:1] = _sampled(self._tail.path, begin, self._samples)
        if len(self._torn) > _LONGEST_LINE:
            self._torn = b""
        return lines, is_new

    def take_torn(self) -> bytes:
        """The line that has not been ended, which is not waited for any more."""
        torn, self._torn = self._torn, b""
        return torn

    def new_records(self) -> list[dict[str, Any]]:
        """The records of the new lines; none while the file is not there, or cannot be read."""
        with suppress(OSError):
            return [revive(record) for record in records_in(self.read()[0])]
        return []


def _sampled(path: Path, end: int, count: int) -> list[bytes]:
    """`count` lines from the bytes of a file up to `end`, evenly spread; the first line is one of them."""
    lines = []
    with open_regular(path) as file:
        for place in range(count):
            file.seek(end * place // count)
            if place:
                file.readline()
            if file.tell() < end:
                lines.append(file.readline())
    return lines


@dataclass(frozen=True, kw_only=True)
class RunProgress:
    """The last logged step, None of lines without one, with the last loss before or at it. `time` as in the record, ISO
    8601 in UTC."""

    step: int | None
    loss: float | None
    epoch: float | None
    time: str


def progress(metrics: Path) -> RunProgress | None:
    """The end of a metrics.jsonl; None when it is not there, cannot be read, or has no step yet.

    A torn last line and foreign lines are passed over. Only as much of the file is read as is needed."""
    last: dict[str, Any] = {}
    loss = None
    for record in _backwards(metrics):
        if not last and whole(record.get("step")) is not None:
            last = record
        if last and (loss := record.get("loss")) is not None:
            break
    if not last:
        return None
    epoch, time = _number(last.get("epoch")), str(last.get("time", ""))
    return RunProgress(step=step_of(last), loss=_number(loss), epoch=epoch, time=time)


def _number(value: object) -> float | None:
    # A loss that is NaN is shown as such.
    return value if isinstance(value, float) else finite(value)


def last_cause(events: Path) -> str | None:
    """The cause of the last failure in an events.jsonl, a code of docs/diagnose.md.

    None where there was none, where the run is under way again, and where the file cannot be read."""
    for record in _backwards(events):
        if record.get("kind") == "failure":
            return str(record.get("cause") or "unknown")
        if kind_of(record).is_under_way:
            return None
    return None


def last_record(path: Path) -> dict[str, Any]:
    """The last record of a JSON-lines file; {} where there is none, or the file cannot be read."""
    return next(_backwards(path), {})


def _backwards(path: Path) -> Iterator[dict[str, Any]]:
    """The records at the end of a JSON-lines file, the last first; a line without its newline is not whole."""
    with suppress(OSError):
        lines, _ = LineTail(path, whole=_LAST, tail=_LAST).read()
        yield from map(revive, records_in(reversed(lines)))
