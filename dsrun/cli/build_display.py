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
    if sys.stderr.isatty():
        with Bars() as bars:
            yield bars.watch
    else:
        yield _print_line


def _print_line(event: Event, tracker: Tracker) -> None:
    text = line_of(event, tracker, time.monotonic())
    if text:
        print_detail(text)


def line_of(event: Event, tracker: Tracker, now: float) -> str | None:
    """The line for an event; None for an event without one."""
    if event.kind == "library":
        return f"{event.name}: compiling"
    if event.kind == "file":
        file = f"{event.file} " if event.file else ""
        return f"{event.label}: {file}compiled ({event.done} of {event.total}){_left(tracker, now)}"
    if event.kind == "end" and event.code == 0:
        return f"{event.label}: done in {duration(tracker.seconds()[event.label])}{_left(tracker, now)}"
    return f"{event.label}: failed" if event.kind == "end" else None


def _left(tracker: Tracker, now: float) -> str:
    left = tracker.left(now)
    return f"; about {duration(left)} left" if left else ""


class Bars:
    """A bar for the build and one for each operation that is being compiled."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[words]}"),
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

    def refresh(self) -> None:
        """Draw at once instead of within a tenth of a second."""
        self._progress.refresh()

    def watch(self, event: Event, tracker: Tracker) -> None:
        """Move the bars."""
        with ignore_closed_stream(2):
            self._move(event, tracker)

    def _move(self, event: Event, tracker: Tracker) -> None:
        if self._whole is None:
            self._whole = self._progress.add_task("all", total=1.0, words="")
        if event.kind == "begin":
            self._tasks[event.label] = self._progress.add_task(event.label, total=1.0, words="")
        task = self._tasks[event.label]
        if event.kind == "file":
            words = f"{event.file} {event.done}/{event.total}".strip()
            self._progress.update(task, completed=event.done / event.total, words=words)
        elif event.kind == "library":
            self._progress.update(task, completed=0.0, words=event.name)
        elif event.kind == "end":
            self._progress.remove_task(self._tasks.pop(event.label))
        left = tracker.left(time.monotonic())
        words = f"about {duration(left)} left" if left else ""
        self._progress.update(self._whole, completed=tracker.done, words=words)
