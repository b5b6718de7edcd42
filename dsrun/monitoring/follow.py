"""A run folder that is read again and again: only what was added since, and of long files only as much as is shown."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from dsrun.monitoring.history import KeptRecords, RunHistory, read_object, refuse_without_run
from dsrun.runs.folder import RunFolder
from dsrun.runs.node_status import read_node_status
from dsrun.runs.records import revive
from dsrun.runs.values import Record
from dsrun.system.files import parse_json

WHOLE = 4 << 20
"""Files up to so many bytes, some 15,000 steps, are read whole."""
TAIL = 256 << 10
NEWEST = 32 << 10
"""The end of a file in which there are as many steps as tell how fast a run is."""
SAMPLES = 500
"""Of what lies before the TAIL of a longer file, so many lines are read: enough for a curve on any terminal."""
MOST_STEPS = 4000
"""So many steps are held; beyond twice as many, every second one of the older half is let go."""
# As json.dumps writes it; a run writes one a minute, and only the last of several in a row tells anything.
_PROGRESS = b'"kind": "progress"'


class RecordTail:
    """The records that were added to a JSON-lines file since the last call."""

    def __init__(self, path: Path, *, whole: int | None = None, samples: int = SAMPLES, tail: int = TAIL) -> None:
        """Of a file longer than `whole` bytes, the first call reads `samples` lines and the `tail` bytes at its end."""
        self.path = path
        self._whole = whole
        self._samples = samples
        self._tail = tail
        self._file = (0, 0)
        self._offset = 0
        self._torn = b""

    def read(self) -> tuple[list[Record], bool]:
        """The new records, and whether they are those of a new file: another one of that name, or one cut short."""
        with suppress(FileNotFoundError, NotADirectoryError), self.path.open("rb") as file:
            stat = os.fstat(file.fileno())
            identity = (stat.st_dev, stat.st_ino)
            is_new = identity != self._file or stat.st_size < self._offset
            lines: list[bytes] = []
            if is_new:
                self._file, self._offset, self._torn = identity, 0, b""
                if self._whole is not None and stat.st_size > self._whole:
                    self._offset = max(0, stat.st_size - self._tail)
                    lines += _sampled(file, self._offset, self._samples)
            skips = is_new and self._offset > 0  # the line in which the tail begins
            lines += self._added(file)[skips:]
            return [record for line in _without_repeated_progress(lines) if (record := _record(line))], is_new
        is_gone, self._file, self._offset = self._file != (0, 0), (0, 0), 0
        return [], is_gone

    def _added(self, file: BinaryIO) -> list[bytes]:
        file.seek(self._offset)
        added = file.read()
        self._offset += len(added)
        *lines, self._torn = (self._torn + added).split(b"\n")
        return lines


class RunReader:
    """The history of the run in a folder, as it grows.

    As `read_history`, but with bounded work: of a long metrics.jsonl a sample of the older steps stands for all of
    them, and its evaluations are taken from events.jsonl; of progress events that follow each other the last is kept.
    """

    def __init__(self, path: Path, *, newest_only: bool = False) -> None:
        """With `newest_only` the history has only the newest steps: enough for a RunStatus."""
        folder = RunFolder(path)
        self.path = path
        self._metrics = (
            RecordTail(folder.metrics, whole=NEWEST, samples=0, tail=NEWEST)
            if newest_only
            else RecordTail(folder.metrics, whole=WHOLE)
        )
        self._events = RecordTail(folder.events)
        self._run_json = folder.run_json
        self._recipe = folder.recipe
        self._kept = KeptRecords()
        self._happened: list[Record] = []
        self._run: Record = {}
        self._run_written = 0

    def read(self) -> RunHistory:
        """The history up to now. Raises UsageError where the folder is not that of a run."""
        added, is_new = self._events.read()
        if is_new:
            self._happened = []
        for event in added:
            if self._happened and event.get("kind") == self._happened[-1].get("kind") == "progress":
                self._happened.pop()
            self._happened.append(event)
        self._read_run_json()
        if not self._run and not self._happened:
            refuse_without_run(self.path)
        self._read_metrics()
        return RunHistory(
            path=self.path,
            run=self._run,
            recipe={} if self._run else read_object(self._recipe),
            steps=tuple(self._kept.steps),
            evaluations=tuple(self._kept.evaluations) or _evaluations(self._happened),
            events=tuple(self._happened),
            nodes=read_node_status(self.path),
        )

    def _read_metrics(self) -> None:
        added, is_new = self._metrics.read()
        if is_new:
            self._kept = KeptRecords()
        for record in added:
            self._kept.add(revive(record))
        steps = self._kept.steps
        if len(steps) > 2 * MOST_STEPS:
            self._kept.steps = steps[:MOST_STEPS:2] + steps[MOST_STEPS:]

    def _read_run_json(self) -> None:
        written = 0
        with suppress(OSError):
            written = self._run_json.stat().st_mtime_ns
        if written != self._run_written:
            self._run_written = written
            self._run = read_object(self._run_json)


def _sampled(file: BinaryIO, end: int, count: int) -> list[bytes]:
    """`count` lines from the bytes of a file up to `end`, evenly spread; the first line is one of them."""
    lines = []
    for place in range(count):
        file.seek(end * place // count)
        if place:
            file.readline()
        if file.tell() < end:
            lines.append(file.readline())
    return lines


def _without_repeated_progress(lines: list[bytes]) -> Iterator[bytes]:
    """The lines without those progress events that another one follows."""
    for place, line in enumerate(lines):
        if _PROGRESS in line and place + 1 < len(lines) and _PROGRESS in lines[place + 1]:
            continue
        yield line


def _record(line: bytes) -> Record | None:
    with suppress(ValueError):
        record = parse_json(line)
        if isinstance(record, dict):
            return record
    return None


def _evaluations(events: list[Record]) -> tuple[Record, ...]:
    """The evaluations that the events tell of."""
    kept = KeptRecords()
    for event in events:
        metrics = event.get("metrics")
        if event.get("kind") == "evaluate" and isinstance(metrics, dict):
            kept.add({**metrics, "step": event.get("step"), "time": event.get("time")})
    return tuple(kept.evaluations)
