"""What the builds print, as it comes: into the log, and as events to whoever watches."""

from __future__ import annotations

import errno
import os
import select
import time
from collections.abc import Callable, Iterator
from typing import IO

from dsrun.wheel.progress import Event, Tracker, parse_line, split_line

Watch = Callable[[Event, Tracker], None]

# ninja's status line says that a command has ended; that it failed stands in the line it prints right after.
_FAILED = "FAILED: "
_MOMENT_MS = 200


def follow(pipe: IO[bytes], log: IO[str], tracker: Tracker, watch: Watch, codes: dict[str, int]) -> None:
    """Log every line the conductor writes into `pipe`, and tell `watch` of those that mean something.

    `codes` gets the exit codes of the builds that end, and under "" the error of a log that could not be written.
    """
    lines = _lines(pipe.fileno())
    try:
        _follow(lines, log, tracker, watch, codes)
    finally:
        for _ in lines:  # whatever happened to the watcher: a build nobody reads from would wait for ever
            pass


def _follow(
    lines: Iterator[str | None], log: IO[str], tracker: Tracker, watch: Watch, codes: dict[str, int]
) -> None:
    def tell(event: Event) -> None:
        tracker.note(event, time.monotonic())
        watch(event, tracker)

    held: dict[str, Event] = {}  # compiled files, until the next line of their build
    for line in lines:
        if line is None:
            for label in tuple(held):
                tell(held.pop(label))
            continue
        try:
            log.write(line)
        except OSError:  # a full disk must not stop the reading: the builds would wait for ever
            codes[""] = errno.ENOSPC
        label, text = split_line(line)
        before = held.pop(label, None)
        if before and not text.startswith(_FAILED):
            tell(before)
        event = parse_line(label, text)
        if event is None or label not in tracker.weights:
            continue
        if event.kind == "file":
            held[label] = event
            continue
        if event.kind == "end":
            codes[label] = event.code
        tell(event)
    for event in held.values():
        tell(event)


def _lines(descriptor: int) -> Iterator[str | None]:
    """Whole lines with their ends; None when no other has come for a moment."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    rest = b""
    while True:
        if not poll.poll(_MOMENT_MS):
            yield None
            poll.poll()
        chunk = os.read(descriptor, 1 << 16)
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace") + "\n"
        if not chunk:
            if rest:
                yield rest.decode(errors="replace")
            return
