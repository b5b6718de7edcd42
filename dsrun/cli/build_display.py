"""The progress of a build on stderr: a bar per operation on a terminal, else one line per event."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from dsrun.cli.output import ignore_closed_stream, print_detail
from dsrun.wheel.compile.output import duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

    from dsrun.wheel.compile.output import Event, Tracker


@contextmanager
def progress_display() -> Iterator[Callable[[Event, Tracker], None]]:
    """A function that shows an event: as bars if stderr is a terminal, else as lines."""

    def print_line(event: Event, tracker: Tracker) -> None:
        text = line_of(event, tracker, time.monotonic())
        if text:
            print_detail(text)

    if sys.stderr.isatty():
        with Bars() as bars:
            yield bars.watch
    else:
        yield print_line


def line_of(event: Event, tracker: Tracker, now: float) -> str | None:
    """The line for an event; None for an event without one."""
    if event.kind == "library":
        return f"{event.name}: compiling"
    if event.kind == "file":
        file = f", {event.file}" if event.file else ""
        text = f"{event.label}: {event.done} of {event.total} files{file}"
    elif event.kind == "end" and event.code == 0:
        text = f"{event.label}: done in {duration(tracker.seconds()[event.label])}"
    else:
        return f"{event.label}: failed" if event.kind == "end" else None
    left = _left(tracker, now)
    return f"{text}; {left}" if left else text


def _left(tracker: Tracker, now: float) -> str:
    left = tracker.left(now)
    return f"about {duration(left)} left" if left else ""


class Bars:
    """A bar for the build and one for each operation that is being compiled."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
            console=console or Console(stderr=True),
            transient=True,
        )
        self._whole: TaskID | None = None
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_error: object) -> None:
        with ignore_closed_stream(2):
            self._progress.stop()

    def watch(self, event: Event, tracker: Tracker) -> None:
        """Move the bars."""
        with ignore_closed_stream(2):
            self._move(event, tracker)

    def _move(self, event: Event, tracker: Tracker) -> None:
        if self._whole is None:
            self._whole = self._progress.add_task("all", total=1.0, text="")
        if event.kind == "begin":
            self._tasks[event.label] = self._progress.add_task(event.label, total=1.0, text="")
        task = self._tasks[event.label]
        if event.kind == "file":
            text = f"{event.file} {event.done}/{event.total}".strip()
            self._progress.update(task, completed=event.done / event.total, text=text)
        elif event.kind == "library":
            self._progress.update(task, completed=0.0, text=event.name)
        elif event.kind == "end":
            self._progress.remove_task(self._tasks.pop(event.label))
        self._progress.update(self._whole, completed=tracker.done, text=_left(tracker, time.monotonic()))
