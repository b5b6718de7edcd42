"""Reading and writing the files of a run folder so that a crash at any moment leaves them readable."""

import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from dsrun.system import host
from dsrun.system.files import open_regular, parse_json, replacing
from dsrun.system.terminal.display import utc_text
from dsrun.system.terminal.secrets import without_tokens

LedgerRecord = Mapping[str, Any]
_NAMES = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def utc_now() -> str:
    """The time as ISO 8601 in UTC with milliseconds: "2026-11-21T04:48:00.123Z"."""
    return utc_text()


class LineAppender:
    """Writes one JSON object a line to the end of a file.

    Each line is a single write in append mode, so that several processes of one machine may share the file
    and a killed one leaves at most a truncated last line. `fsync` makes every line survive a power cut, for
    the ledger of events; metrics do without. Values that JSON cannot express (NaN, infinities) are written
    as null and named under "nonfinite"; `revive` brings them back."""

    def __init__(self, path: Path, *, fsync: bool = False) -> None:
        self.path = path
        self._fsync = fsync
        # Supervisor and ranks write into one ledger: O_APPEND keeps their lines whole, but not over NFS (open(2)), so
        # that readers pass over torn ones.
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._began = time.monotonic()
        # A writer killed in mid-line must not swallow the next writer's first line.
        size = os.fstat(self._fd).st_size
        self._torn = size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"

    def append(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Write `record` with time stamps; returns the object as written. OSError when the disk is full."""
        stamps = {"time": utc_now(), "elapsed": round(time.monotonic() - self._began, 3)}
        written = plain({**stamps, **record})
        line = memoryview((b"\n" if self._torn else b"") + _encode(written) + b"\n")
        self._torn = True
        while line:  # a full disk or a signal may cut a write short
            line = line[os.write(self._fd, line) :]
        self._torn = False
        if self._fsync:
            os.fsync(self._fd)
        return written

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class EventLog(LineAppender):
    """events.jsonl: what happened to a run, each line on disk before the run goes on."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, fsync=True)

    def write(self, kind: str, **details: Any) -> dict[str, Any]:
        """Append an event; its kind and the keys of `details` are in dsrun/events.toml. What is None is left out,
        secrets are masked."""
        clock = {"boot": host.boot_id(), "uptime": host.uptime_s()}
        shown = {name: without_tokens(value) if isinstance(value, str) else value for name, value in details.items()}
        known = {name: value for name, value in shown.items() if value is not None}
        return self.append({"kind": kind, "pid": os.getpid(), "host": host.hostname(), **clock, **known})


def plain(record: Mapping[str, Any]) -> dict[str, Any]:
    """`record` as values that JSON has: paths become text, array scalars numbers, NaN and infinities null.

    What was not finite is listed under "nonfinite" by its key, nested keys joined by dots."""
    lost: dict[str, str] = {}
    cleaned = {str(key): _plain(value, str(key), lost) for key, value in record.items()}
    return {**cleaned, "nonfinite": lost} if lost else cleaned


def _plain(value: Any, key: str, lost: dict[str, str]) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        lost[key] = "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
        return None
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(inner, f"{key}.{name}", lost) for name, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(inner, f"{key}.{index}", lost) for index, inner in enumerate(value)]
    if hasattr(value, "tolist"):  # numpy and torch, neither of which may be imported here
        return _plain(value.tolist(), key, lost)
    return str(value)


def _encode(record: Mapping[str, Any], indent: int | None = None) -> bytes:
    """JSON as UTF-8. A lone surrogate, as in an undecodable file name, becomes its own JSON escape."""
    text = json.dumps(record, ensure_ascii=False, allow_nan=False, indent=indent)
    return text.encode("utf-8", errors="backslashreplace")


def revive(record: Mapping[str, Any]) -> dict[str, Any]:
    """`record` with the top-level values that were not finite put back as floats."""
    lost = record.get("nonfinite")
    lost = lost if isinstance(lost, dict) else {}
    named = {key: name for key, name in lost.items() if key in record and isinstance(name, str)}
    back = {key: _NAMES[name] for key, name in named.items() if name in _NAMES}
    return {key: value for key, value in {**record, **back}.items() if key != "nonfinite"}


def iter_records(path: Path) -> Iterator[dict[str, Any]]:
    """The records of `path`, read line by line; nothing when the file is not there.

    Lines that are no JSON object are passed over: the last one of a run that is writing or was killed, and
    the torn one that a resumed run ended. Unknown keys are kept."""
    with suppress(FileNotFoundError), open_regular(path) as lines:
        yield from records_in(lines)


def read_records(path: Path) -> list[dict[str, Any]]:
    """All records of `path`; see `iter_records`."""
    return list(iter_records(path))


def write_json_atomic(path: Path, value: Mapping[str, Any]) -> None:
    """Write `value` to `path`: a reader, also after a power cut, sees the old file or the new one."""
    write_atomic(path, _encode(plain(value), indent=2) + b"\n")


def write_atomic(path: Path, content: bytes) -> None:
    """Write `content` to `path`: a reader, also after a power cut, sees the old file or the new one."""
    with replacing(path) as partial, partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fsync_folder(path.parent)


def fsync_folder(folder: Path) -> None:
    """Make renames in `folder` survive a power cut, where its file system can."""
    with suppress(OSError):  # some network file systems refuse to sync a folder
        sync_file(folder)


def sync_file(file: Path) -> None:
    """Wait until what was written to `file`, by whichever process of this machine, is on the disk."""
    fd = os.open(file, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def records_in(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The lines of a ledger that are JSON objects."""
    for line in lines:
        with suppress(ValueError):
            record = parse_json(line)
            if isinstance(record, dict):
                yield record


# The values of records, which another version, another program or a damaged disk may have written.


_LARGEST = 2**63 - 1


def whole(value: object) -> int | None:
    """A whole number of 64 bits; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _LARGEST else None


def step_of(record: LedgerRecord) -> int | None:
    """The step of a record; None without one, and of a program whose lines name none and are but counted."""
    return None if record.get("counted") else whole(record.get("step"))


def mapping(value: object) -> LedgerRecord:
    """An object by its keys; {} for anything else."""
    return value if isinstance(value, Mapping) else {}


def finite(value: object) -> float | None:
    """A number that is finite; None for anything else, also for a whole one beyond what a float holds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def seconds_of(record: LedgerRecord) -> float | None:
    """The time of a record in seconds since the epoch; None where it has none."""
    try:
        return datetime.fromisoformat(str(record.get("time"))).timestamp()
    except (ValueError, OverflowError):
        return None


# The ledger of samples: one file a rank, of two kinds of lines:
#
#     {"attempt": 1, "start": 40, "ranks": 2}              training began (again) after step 40, on two ranks
#     {"attempt": 1, "step": 41, "epoch": 0, "ids": [...]} step 41 was done with these samples on this rank


def ledger_file(run: Path, rank: int) -> Path:
    """The ledger of one rank of the run in folder `run`."""
    return run / f"samples-rank-{rank}.jsonl"


def next_attempt(run: Path) -> int:
    """The number of the attempt that begins now, by rank 0's ledger."""
    return sum("start" in line for line in iter_records(ledger_file(run, 0)))


def append_start(ledger: LineAppender, attempt: int, *, step: int, ranks: int) -> None:
    """Note that training goes on after `step`."""
    ledger.append({"attempt": attempt, "start": step, "ranks": ranks})


def append_step(ledger: LineAppender, attempt: int, *, step: int, epoch: int | None, ids: Sequence[int]) -> None:
    """Note that `step` is done and took these samples on this rank."""
    ledger.append({"attempt": attempt, "step": step, "epoch": epoch, "ids": list(ids)})
