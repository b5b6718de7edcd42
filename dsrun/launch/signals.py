"""What the user, the scheduler or another node wants of a running supervisor: to save and leave, or to end at once."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType

from dsrun.launch.coordinator.messages import Coordinator, StoppedBeforeStart
from dsrun.runs.heartbeat import StopRequest, read_stop_file, write_stop_file
from dsrun.system.process.proc import handling

OUTER_POLL_S = 1.0
"""How often the outer file is looked at: all nodes of a large job ask one file server for it."""

HANDLED_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT)


class StopRequests:
    """The requests so far.

    The first SIGTERM, SIGUSR1 or SIGHUP asks to save and exit; one more SIGTERM or SIGHUP, or SIGINT, to end at once.
    One SIGINT ends without saving, a second one at once. The stop file carries the request between the processes of
    this machine: agent and ranks read it, and may write it. `outer` is the stop file of whoever has started this
    supervisor, such as the batch script of a SLURM job. With `to_program` that file, as SIGTERM and SIGUSR1, which this
    process then ignores, is for the program alone."""

    def __init__(
        self,
        file: Path,
        announce: Callable[[StopRequest], None],
        *,
        outer: Path | None = None,
        to_program: bool = False,
    ) -> None:
        self.file = file
        self._outer = outer
        self._to_program = to_program
        self._program_asked: StopRequest | None = None
        self._next_poll = 0.0
        self._announce = announce
        self._stop: StopRequest | None = None
        self._own = False
        self.force_quit: int | None = None
        """The signal that ended all patience."""
        self.interrupted = False
        """Ctrl-C: end without saving."""

    def stop(self) -> StopRequest | None:
        """The request to save and exit, None if there is none."""
        if self._stop is None:
            request = read_stop_file(self.file) or (None if self._to_program else self._read_outer())
            if request is not None:
                self.add(request)
        return self._stop

    def program_asked(self) -> StopRequest | None:
        """The request to a program that gets the signals itself: all its ranks may end as they like.

        Reads the file at every call until it is there: to be called when a rank has ended, or by one node."""
        if self._to_program and self._outer and not self._program_asked:
            self._program_asked = read_stop_file(self._outer)
        return self._program_asked

    def _read_outer(self) -> StopRequest | None:
        now = time.monotonic()
        if self._outer is None or now < self._next_poll:
            return None
        self._next_poll = now + OUTER_POLL_S
        return read_stop_file(self._outer)

    def add(self, request: StopRequest, *, announce: bool = True) -> None:
        """Take a request of this machine; or, without `announce`, of another node."""
        if self._stop is None or self._stop.yields_to(request):
            self._stop = request
            write_stop_file(self.file, request)
            if announce:
                self._announce(request)

    def regrouped(self) -> None:
        """The ranks have left, to be started again: what they were asked is over."""
        self.file.unlink(missing_ok=True)
        if self._stop is not None and self._stop.is_over:
            self._stop = None

    def handle(self, signum: int, frame: FrameType | None = None) -> None:
        """Signal handler."""
        if signum == signal.SIGINT:
            if self.interrupted or self._own:
                self.force_quit = signum
            self.interrupted = True
        elif signum != signal.SIGUSR1 and (self._own or self.interrupted):
            self.force_quit = signum
        else:
            # A request that came another way does not count: a scheduler signals all processes of a job at once.
            self._own = True
            self.add(StopRequest.now(signal.Signals(signum).name))

    def handling_signals(self) -> AbstractContextManager[None]:
        """Handle the signals in here."""
        return handling(self.handle, HANDLED_SIGNALS)


STARTUP_HANDLED_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


class _Signalled(Exception):
    """A signal came to this process."""


class StartupSignals:
    """The first signal so far, which is announced to the coordinator, once there is one.

    An exception that a signal raises may be swallowed by whatever code it falls into; the coordinator's request is not.
    """

    def __init__(self) -> None:
        self.request: StopRequest | None = None
        self.is_over = False
        """Whether the run has ended: what comes now cannot change how."""
        self._coordinator: Coordinator | None = None

    def forward_to(self, coordinator: Coordinator) -> None:
        """Announce the request to `coordinator`, also one that comes later."""
        self._coordinator = coordinator
        if self.request is not None:
            coordinator.announce_stop(self.request)

    def handle(self, signum: int, frame: FrameType | None) -> None:
        """Signal handler. The second SIGTERM or SIGHUP ends the process at once."""
        if self.is_over:
            return
        if self.request is None:
            self.request = StopRequest.now(signal.Signals(signum).name)
            if self._coordinator is not None:
                self._coordinator.announce_stop(self.request)
            raise _Signalled
        if signum != signal.SIGUSR1:
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)


@contextmanager
def startup_signals() -> Iterator[StartupSignals]:
    """Have a signal end what is in here by StoppedBeforeStart, until something in here handles signals itself."""
    early = StartupSignals()
    try:
        with handling(early.handle, STARTUP_HANDLED_SIGNALS):
            yield early
    except _Signalled:
        raise StoppedBeforeStart(early.request or StopRequest()) from None
