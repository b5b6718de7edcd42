"""Parse a build's output: its progress, the time left, and the first error."""

import errno
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import PurePath
from typing import IO, Literal

from dsrun.wheel.compile.parallel import BEGIN, END

# ninja's default status: finished and all edges of one operation.
_NINJA = re.compile(r"^\[(\d+)/(\d+)\] (.*)$")
# setuptools, before it compiles an extension.
_EXTENSION = re.compile(r"^building '([\w.]+)' extension$")


@dataclass(frozen=True, kw_only=True)
class BuildEvent:
    """A build or a library begins, a file is finished, a build has ended, or was not needed ("reused").

    `file` and its number `done` of `total` for "file"; `code` for "end"; `name` is the build's label or the library's
    name without its package."""

    kind: Literal["begin", "library", "file", "end", "reused"]
    label: str
    name: str
    file: str = ""
    done: int = 0
    total: int = 0
    code: int = 0


def split_line(line: str) -> tuple[str, str]:
    """Label and text of a line of the parallel builds'."""
    label, _, text = line.rstrip("\n").partition("\t")
    return label, text


def parse_line(label: str, text: str) -> BuildEvent | None:
    """The event in one line that the build `label` printed; None for everything else."""
    if text == BEGIN:
        return BuildEvent(kind="begin", label=label, name=label)
    if text.startswith(END + " "):
        return BuildEvent(kind="end", label=label, name=label, code=int(text.rpartition(" ")[2]))
    if extension := _EXTENSION.match(text):
        name = extension[1].rpartition(".")[2].removesuffix("_op")
        return BuildEvent(kind="library", label=label, name=name)
    if step := _NINJA.match(text):
        return BuildEvent(
            kind="file", label=label, name=label, file=_source(step[3]), done=int(step[1]), total=int(step[2])
        )
    return None


def _source(command: str) -> str:
    """Name of the file that a compiler's command line compiles; "" when it compiles none."""
    arguments: Sequence[str] = ()
    with suppress(ValueError):  # a shell construct, not a plain command
        arguments = shlex.split(command)
    for flag, value in pairwise(arguments):
        if flag == "-c" and not value.startswith("-"):  # torch writes -c twice
            return PurePath(value).name
    return ""


@dataclass
class _Part:
    weight: float
    share: float = 0.0
    began: float | None = None
    seconds: float | None = None
    libraries: int = 0


@dataclass
class BuildTracker:
    """How far all builds are. Times are seconds of one clock, whatever its zero."""

    weights: Mapping[str, float]
    """Expected work by label, in any unit."""
    libraries: Mapping[str, int]
    """How many libraries each build makes."""
    _parts: dict[str, _Part] = field(init=False)
    _began: float | None = None

    def __post_init__(self) -> None:
        self._parts = {label: _Part(weight) for label, weight in self.weights.items()}

    def note(self, event: BuildEvent, now: float) -> None:
        part = self._parts[event.label]
        if event.kind == "begin":
            part.began = now
            self._began = now if self._began is None else self._began
        elif event.kind == "library":
            part.share = part.libraries / self.libraries[event.label]
            part.libraries += 1
        elif event.kind == "file" and event.total:
            before = max(0, part.libraries - 1)
            part.share = (before + event.done / event.total) / self.libraries[event.label]
        elif event.kind == "end":
            part.share = 1.0
            part.seconds = 0.0 if part.began is None else now - part.began

    @property
    def done(self) -> float:
        """Share of the work that is finished, 0 to 1."""
        whole = sum(part.weight for part in self._parts.values())
        return sum(part.weight * min(1.0, part.share) for part in self._parts.values()) / whole if whole else 0.0

    def left(self, now: float) -> float | None:
        """Seconds that remain at the rate so far; None before anything is finished."""
        done = self.done
        if self._began is None or done <= 0:
            return None
        return (now - self._began) * (1 - done) / done

    def seconds(self) -> dict[str, float]:
        """Wall-clock seconds of the builds that have ended."""
        return {label: part.seconds for label, part in self._parts.items() if part.seconds is not None}


OnEvent = Callable[[BuildEvent, BuildTracker], None]


def follow(pipe: IO[bytes], log: IO[str], tracker: BuildTracker, on_event: OnEvent, codes: dict[str, int]) -> None:
    """Log every line the parallel builds write into `pipe`, and call `on_event` for each event.

    `codes` gets the exit codes of the builds that end, and under "" the error of a log that could not be written."""
    try:
        for raw in pipe:
            line = raw.decode(errors="replace")
            try:
                log.write(line)
            except OSError:  # a full disk must not stop the reading: the builds would block
                codes[""] = errno.ENOSPC
            event = parse_line(*split_line(line))
            if event is None or event.label not in tracker.weights:
                continue
            if event.kind == "end":
                codes[event.label] = event.code
            tracker.note(event, time.monotonic())
            on_event(event, tracker)
    finally:
        for _ in pipe:  # also when `on_event` fails: a build whose output is not read would block
            pass
