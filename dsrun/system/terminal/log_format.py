"""--log-format json: what appears on stderr as JSON in the Elastic Common Schema (ECS), one object a line.

Field names and values as in https://www.elastic.co/docs/reference/ecs, order as in the specification of ECS loggers
(https://github.com/elastic/ecs-logging/blob/main/spec/spec.json); what ECS has no name for is below `dsrun.`.
DSRUN_LOG_FORMAT carries the format to all processes of a run.

What torch and its companions say of their own affairs, which a user cannot act on, is in either format kept by logs
and not shown on terminals."""

import json
import math
import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from dsrun.datafiles import toml_beside
from dsrun.events import EventLevel, kind_of, level_of
from dsrun.system import variables
from dsrun.system.host import hostname
from dsrun.system.terminal.display import printable, utc_text
from dsrun.system.terminal.secrets import without_tokens
from dsrun.system.terminal.stderr import writing

ECS_VERSION = "8.11.0"
FORMATS = ("text", "json")

LogLevel = Literal["info", "warn", "error"]
LogOutcome = Literal["success", "failure"]

labels: dict[str, str] = {}
"""`labels.*` of every line of this process, beside those of `labels_from`: the run folder, once it is known."""

# A line that does not end is cut here, or it would fill the memory.
_LONGEST_LINE = 1 << 16
_BEGIN = b'{"@timestamp"'
_lock = threading.Lock()


def choose(name: str) -> None:
    """Have this process, and those that it starts, write in the format `name`."""
    os.environ[variables.LOG_FORMAT] = name


def labels_from(environ: Mapping[str, str]) -> dict[str, str]:
    """The labels that the environment of a rank or a job tells."""
    output = environ.get(variables.OUTPUT)
    known = {
        "run": str(Path(output).absolute()) if output else None,
        "job_id": environ.get("SLURM_JOB_ID"),
        "rank": environ.get("RANK"),
    }
    return {name: value for name, value in known.items() if value}


def ecs_line(
    message: str,
    *,
    action: str,
    level: LogLevel = "info",
    kind: Literal["event", "metric"] = "event",
    outcome: LogOutcome | None = None,
    time: str | None = None,
    fields: Mapping[str, Any] | None = None,
) -> str:
    """One object, with its newline. `action` names what has happened, `time` when (ISO 8601, by default now), `fields`
    are further ones by their whole names."""
    found = {
        "@timestamp": time or utc_text(),
        "log.level": level,
        "message": without_tokens(printable(message)),
        "ecs.version": ECS_VERSION,
        "service.name": "dsrun",
        "event.kind": kind,
        "event.category": ["process"],
        "event.type": ["error" if level == "error" else "info"],
        "event.action": action,
        "event.dataset": "dsrun.log",
        "host.name": hostname(),
        "process.pid": os.getpid(),
        **({"event.outcome": outcome} if outcome else {}),
        **{f"labels.{name}": value for name, value in {**labels_from(os.environ), **labels}.items()},
        **_known(fields or {}),
    }
    return json.dumps(found, ensure_ascii=False, default=str).encode("utf-8", "backslashreplace").decode() + "\n"


def _known(fields: Mapping[str, Any]) -> dict[str, Any]:
    """`fields` without what JSON has no value for: a NaN as text would be a second type of its field."""
    lost = {name for name, value in fields.items() if isinstance(value, float) and not math.isfinite(value)}
    kept = {name: value for name, value in fields.items() if name not in lost and value is not None}
    return {**kept, "dsrun.nonfinite": sorted(lost)} if lost else kept


def event_line(record: Mapping[str, Any]) -> str:
    """A line of events.jsonl as one of the log."""
    kind = str(record.get("kind"))
    meaning, level = kind_of(record), _LEVELS[level_of(record)]
    own = {f"dsrun.{name}": value for name, value in record.items() if name not in _ENVELOPE}
    about: dict[str, Any] = {
        "host.name": record.get("host"),
        "process.pid": record.get("pid"),
        "event.dataset": "dsrun.events",
    }
    seconds = record.get("seconds")
    if meaning.timed and isinstance(seconds, (int, float)) and abs(seconds) < _LONGEST_S:
        about["event.duration"] = round(seconds * 1e9)  # nanoseconds
    if isinstance(record.get("message"), str) and level == "error":
        about["error.message"] = without_tokens(printable(str(record["message"])))
        about["error.code"] = record.get("cause")
    step = f" at step {record['step']}" if "step" in record else ""
    said = f": {record['message']}" if record.get("message") else ""
    outcome: LogOutcome | None = "failure" if record.get("exit_code") else meaning.outcome
    if kind in ("start", "end"):
        about["event.type"] = [kind]
    return ecs_line(
        f"{kind.replace('_', ' ')}{step}{said}",
        action=kind.replace("_", "-"),
        level=level,
        outcome=outcome,
        time=str(record["time"]) if "time" in record else None,
        fields={**own, **about},
    )


_LEVELS: Mapping[EventLevel, LogLevel] = {"quiet": "info", "info": "info", "warning": "warn", "error": "error"}
_ENVELOPE = ("time", "kind", "host", "pid", "message")
# Nanoseconds in 64 bits, the type of ECS's event.duration.
_LONGEST_S = 2**63 / 1e9


class LineFormatter:
    """Makes ECS lines of the output of programs, piece by piece; lines that are ECS already stay as they are."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        """The lines that `data` completes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            lines, self._rest = [*lines, self._rest], b""
        return b"".join(map(self._line, lines))

    def end(self) -> bytes:
        """The last line, if it has no newline."""
        rest, self._rest = self._rest, b""
        return self._line(rest)

    @staticmethod
    def _line(line: bytes) -> bytes:
        if line.startswith(_BEGIN):
            return line + b"\n"
        # What a progress bar has written over is not shown on a terminal either.
        text = line.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2].strip()
        return ecs_line(text, action="output").encode() if text else b""


def write_stderr(data: bytes) -> None:
    """Write `data` to stderr in one piece as far as threads of this process are concerned. Raises OSError."""
    with writing(data, line=False), _lock:
        while data:
            data = data[os.write(2, data) :]


_TABLE = toml_beside(__file__)
_LINE = re.compile(f"({_TABLE['rank']})?({'|'.join(_TABLE['noise'])})".encode())
_WARNING = re.compile(_TABLE["warning"].encode())
_MAYBE = re.compile(f"({_TABLE['rank']})?({'|'.join(_TABLE['unfinished'])})".encode())
_LONGEST = 4096


class NoiseFilter:
    """Leaves these lines out of the output of programs, piece by piece."""

    def __init__(self) -> None:
        self._rest = b""
        self._is_shown = False
        self._warned = False

    def feed(self, data: bytes) -> bytes:
        """What of `data`, and of what was held back, is to be shown."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        shown = b"".join(line + b"\n" for line in lines if self._shows(line))
        if self._is_shown or not (_MAYBE.match(self._rest) or self._warned) or len(self._rest) > _LONGEST:
            shown, self._rest, self._is_shown = shown + self._rest, b"", bool(self._rest) or self._is_shown
        return shown

    def end(self) -> bytes:
        """The last line, if it has no newline."""
        rest, self._rest = self._rest, b""
        return rest if rest and self._shows(rest) else b""

    def _shows(self, line: bytes) -> bool:
        if self._is_shown:  # its beginning is
            self._is_shown = False
            return True
        if self._warned and line.startswith(b"  "):
            self._warned = False
            return False
        self._warned = bool(_WARNING.match(line))
        return not self._warned and not _LINE.match(line)
