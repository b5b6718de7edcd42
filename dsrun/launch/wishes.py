"""What the user, the scheduler or another node wants of a running supervisor: to save and leave, or to end at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from dsrun.launch.agent_process import write_wish

SOMEBODY = "a signal"
"""Who made the stop file, when it does not say."""

HEEDED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT)


class Wishes:
    """The wishes so far.

    The first SIGTERM, SIGUSR1 or SIGHUP asks to save and leave; one more SIGTERM or SIGHUP, or SIGINT, to end at once.
    One SIGINT ends without saving, a second one at once. The stop file, whose content is the signal's name, carries
    the wish between the processes of this machine: agent and ranks look at it, and may make it.
    """

    def __init__(self, file: Path, announce: Callable[[str], None]) -> None:
        self.file = file
        self._announce = announce
        self._stop: str | None = None
        self._own = False
        self.at_once: int | None = None
        """The signal that ended all patience."""
        self.interrupted = False
        """Ctrl-C: end without saving."""

    def stop(self) -> str | None:
        """The name of the signal that asks to save and leave, None where nobody did."""
        if self._stop is None and self.file.exists():
            self.ask(self.file.read_text().strip() or SOMEBODY)
        return self._stop

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

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Heed the signals in here. Python allows that in the main thread only; what is ignored (nohup) stays so."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        heeded = [each for each in HEEDED if signal.getsignal(each) is not signal.SIG_IGN]
        before = {signum: signal.signal(signum, self.heed) for signum in heeded}
        try:
            yield
        finally:
            for signum, handler in before.items():
                signal.signal(signum, signal.SIG_DFL if handler is None else handler)
