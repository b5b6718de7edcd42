"""What is being done, said while nothing else is written: a spinner on a terminal, a plain line now and then elsewhere.

Whoever else writes to that terminal in this process does so within `writing`, so that no line is torn."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import ClassVar, Final

from dsrun.system.terminal import stderr
from dsrun.system.terminal.display import duration

SILENCE_S: Final = 2.5
"""The silence that a plain line ends; of what takes long, a GROWTH of its time so far, LONGEST_S at most."""
GROWTH: Final = 0.25
LONGEST_S: Final = 60.0
SPINNER_S: Final = 0.3
"""The silence before the spinner turns, so that quick work does not flicker."""

_TICK_S = 0.1
_STOP_S = 1.0
_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_ERASE = b"\r\x1b[2K"
_SHOW_CURSOR = b"\x1b[?25h"


class StatusLine:
    """The status of one process on the terminal, file or pipe `fd`, as `tick` brings it up to date."""

    over_at: ClassVar[float] = 0.0
    """When something was last written before this one began, 0 where nobody knows."""

    def __init__(
        self,
        print_line: Callable[[str], None],
        *,
        fd: int = 2,
        terminal: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._print_line = print_line
        self._fd = fd
        self._terminal = terminal
        self._clock = clock
        # Whoever holds it may have to wait for the terminal: `say` does without.
        self._lock = threading.RLock()
        self._activity = ("", "", clock())
        self._last_write = StatusLine.over_at or clock()
        self._spins = 0
        self._unfinished = b""

    def say(self, what: str, more: str = "") -> None:
        """`what` is being done from now on, nothing worth a word if empty; `more` says how far it is."""
        known, _, since = self._activity
        self._activity = (what, more, since if what == known else self._clock())

    @contextmanager
    def writing(self, data: bytes, *, line: bool = True) -> Iterator[None]:
        """Write `data` in here; `line`: what is not finished, such as a progress bar, must not stand before it."""
        with self._lock:
            self._erase(unfinished=line)
            yield
            self._last_write = self._clock()
            rest = data.rpartition(b"\n")[2].removesuffix(_SHOW_CURSOR)
            self._unfinished = b"" if rest.endswith(_ERASE[1:]) else rest

    def tick(self) -> None:
        """Say what is being done, if that is due."""
        what, more, since = self._activity
        now, line = self._clock(), ""
        with self._lock:
            silence, seconds = now - self._last_write, now - since
            text = f"{what}{more} …" + (f" {duration(seconds)}" if seconds >= 1 else "")
            if not what or self._unfinished:
                self._erase()
            elif self._terminal and silence >= SPINNER_S:
                self._spin(text)
            elif not self._terminal and silence >= min(max(SILENCE_S, GROWTH * seconds), LONGEST_S):
                line = text
        if line:  # without the lock, as a console that others write to as well has one of its own
            self._print_line(line)

    def close(self) -> None:
        """Leave no trace of the spinner, nor of a bar whose process is gone."""
        if self._lock.acquire(timeout=_STOP_S):  # a terminal may take nothing for hours
            self._activity = ("", "", 0.0)
            self._erase(unfinished=True)
            StatusLine.over_at = self._last_write
            self._lock.release()

    def _spin(self, text: str) -> None:
        self._spins += 1
        shown = f"{_FRAMES[self._spins % len(_FRAMES)]} {text}"
        with suppress(OSError):
            shown = shown[: (os.get_terminal_size(self._fd).columns or 80) - 1]
        self._put(_ERASE + shown.encode())

    def _erase(self, *, unfinished: bool = False) -> None:
        """Clear the line of the spinner; with `unfinished` also that of a bar, and end any other."""
        if self._spins:
            self._put(_ERASE)
        elif unfinished and self._unfinished and self._terminal:
            # A bar hides the cursor, and one whose process was killed does not show it again.
            self._put(_ERASE + _SHOW_CURSOR if _ERASE in self._unfinished else b"\n")
            self._unfinished = b""
        self._spins = 0

    def _put(self, data: bytes) -> None:
        with suppress(OSError):  # the terminal is gone
            os.write(self._fd, data)


@contextmanager
def status(what: str, *, fd: int = 2, print_line: Callable[[str], None] = stderr.print_detail) -> Iterator[StatusLine]:
    """Say what is being done in here, beginning with `what`; `print_line` prints to `fd`."""
    is_terminal = os.isatty(fd) and os.environ.get("TERM") != "dumb"
    line = stderr.shown = StatusLine(print_line, fd=fd, terminal=is_terminal and not stderr.is_json())
    line.say(what)
    over = threading.Event()

    def keep_up() -> None:
        while not over.wait(_TICK_S):
            line.tick()

    thread = threading.Thread(target=keep_up, name="status line", daemon=True)
    thread.start()
    try:
        yield line
    finally:
        over.set()
        thread.join(_STOP_S)
        line.close()
        stderr.shown = None
