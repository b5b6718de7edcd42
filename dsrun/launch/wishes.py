"""What the user, the scheduler or another node wants of a running supervisor: to save and leave, or to end at once."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType

from dsrun.launch.agent_process import write_wish
from dsrun.system.proc import handling

SOMEBODY = "a signal"
"""Who made the stop file, when it does not say."""

OUTER_LOOK_S = 1.0
"""How often the outer file is looked at: all nodes of a large job ask one file server for it."""

HEEDED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT)


class Wishes:
    """The wishes so far.

    The first SIGTERM, SIGUSR1 or SIGHUP asks to save and leave; one more SIGTERM or SIGHUP, or SIGINT, to end at once.
    One SIGINT ends without saving, a second one at once. The stop file, whose content is the signal's name, carries
    the wish between the processes of this machine: agent and ranks look at it, and may make it. `outer` is the stop
    file of whoever has started this supervisor, such as the batch script of a SLURM job.
    """

    def __init__(self, file: Path, announce: Callable[[str], None], *, outer: Path | None = None) -> None:
        self.file = file
        self._outer = outer
        self._next_look = 0.0
        self._announce = announce
        self._stop: str | None = None
        self._own = False
        self.at_once: int | None = None
        """The signal that ended all patience."""
        self.interrupted = False
        """Ctrl-C: end without saving."""

    def stop(self) -> str | None:
        """The name of the signal that asks to save and leave, None where nobody did."""
        if self._stop is None:
            name = _read(self.file) or self._read_outer()
            if name is not None:
                self.ask(name)
        return self._stop

    def _read_outer(self) -> str | None:
        now = time.monotonic()
        if self._outer is None or now < self._next_look:
            return None
        self._next_look = now + OUTER_LOOK_S
        return _read(self._outer)

    def ask(self, name: str, *, announce: bool = True) -> None:
        """Signal `name` came to this machine; or, without `announce`, another node said so."""
        if self._stop is None:
            self._stop = name
            write_wish(self.file, name)
            if announce:
                self._announce(name)

    def heed(self, signum: int, frame: FrameType | None = None) -> None:
        """Signal handler."""
        if signum == signal.SIGINT:
            if self.interrupted or self._own:
                self.at_once = signum
            self.interrupted = True
        elif signum != signal.SIGUSR1 and (self._own or self.interrupted):
            self.at_once = signum
        else:
            # A wish that came another way does not count: a scheduler signals all processes of a job at once.
            self._own = True
            self.ask(signal.Signals(signum).name)

    def listening(self) -> AbstractContextManager[None]:
        """Heed the signals in here."""
        return handling(self.heed, HEEDED)


def _read(file: Path) -> str | None:
    """The signal's name that a stop file holds; None where there is none, or where it cannot be read now."""
    try:
        return file.read_text(errors="replace").strip() or SOMEBODY
    except OSError:
        return None
