"""Signals that come before a run heeds them itself: nothing has begun, so the command ends, to be given again."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from dsrun.launch.council import Council, Stopped
from dsrun.system.proc import handling

HEEDED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


class _Signalled(Exception):
    """A signal came to this process."""


class Early:
    """The first signal so far, which `council`, once there is one, hears of as well.

    An exception that a signal raises may be swallowed by whatever code it falls into, and the council's word not.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.is_over = False
        """Whether the run has ended: what comes now cannot change how."""
        self._council: Council | None = None

    def tell(self, council: Council) -> None:
        """From here on `council` is told."""
        self._council = council
        if self.name is not None:
            council.announce_stop(self.name)

    def heed(self, signum: int, frame: FrameType | None) -> None:
        """Signal handler. The second SIGTERM or SIGHUP ends the process at once."""
        if self.is_over:
            return
        if self.name is None:
            self.name = signal.Signals(signum).name
            if self._council is not None:
                self._council.announce_stop(self.name)
            raise _Signalled
        if signum != signal.SIGUSR1:
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)


@contextmanager
def early_signals() -> Iterator[Early]:
    """Have a signal end what is in here, until something in here heeds signals itself. Raises Stopped then."""
    early = Early()
    try:
        with handling(early.heed, HEEDED):
            yield early
    except _Signalled:
        raise Stopped(f"{early.name} came before the run began: the same command starts it") from None
