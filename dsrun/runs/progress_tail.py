"""How far a run is: the end of its metrics, read from the end."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsrun.runs.records import revive

_BLOCK = 1 << 16
# Evaluations write lines without a loss; between two steps' lines there are never a mebibyte of them.
_MOST = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The last logged step, with the last loss before or at it. `time` as in the record, ISO 8601 in UTC."""

    step: int
    loss: float | None
    epoch: float | None
    time: str


def progress(metrics: Path) -> Progress | None:
    """The end of a metrics.jsonl; None when it is not there, cannot be read, or has no step yet.

    A torn last line and foreign lines are passed over. Only as much of the file is read as is needed.
    """
    last: dict[str, Any] = {}
    try:
        for record in _backwards(metrics):
            if not last and isinstance(record.get("step"), int):
                last = record
            if last and record.get("loss") is not None:
                return _progress(last, record["loss"])
    except OSError:
        return None
    return _progress(last, None) if last else None


def _progress(last: dict[str, Any], loss: Any) -> Progress:
    epoch = last.get("epoch")
    return Progress(
        step=last["step"],
        loss=float(loss) if isinstance(loss, (int, float)) else None,
        epoch=float(epoch) if isinstance(epoch, (int, float)) else None,
        time=str(last.get("time", "")),
    )


def _backwards(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a JSON-lines file, the last first; a line without its newline is not whole."""
    with path.open("rb") as file:
        position = file.seek(0, os.SEEK_END)
        end = max(0, position - _MOST)
        rest = b""  # a line whose beginning has not been read yet
        torn = True  # nothing but what stands behind the last newline has been read yet
        while position > end:
            size = min(_BLOCK, position - end)
            position -= size
            file.seek(position)
            rest, *lines = (file.read(size) + rest).split(b"\n")
            if lines and torn:
                lines.pop()
                torn = False
            yield from _records(reversed(lines))
        if position == 0 and not torn:
            yield from _records([rest])


def _records(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield revive(record)
