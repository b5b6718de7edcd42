"""Output to a terminal that may block: a line writer that does not wait, and a tee of the workers' output."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Full, Queue, SimpleQueue
from typing import IO

STUCK_S = 5.0
"""Seconds that a terminal may block before its output is dropped."""
_PIECES = 16
_END = b""


class AsyncLineWriter:
    """Says lines one after the other, in a thread of its own.

    A terminal may take nothing for hours (Ctrl-S, a pager, a connection that is gone), while ranks have to be watched
    and started again. At the end of the `with` block lines that have not been taken are waited for, for `timeout_s`
    seconds.
    """

    def __init__(self, say: Callable[[str], None], *, timeout_s: float) -> None:
        self._say = say
        self._timeout_s = timeout_s
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._write_lines, name="voice", daemon=True)

    def __enter__(self) -> AsyncLineWriter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.put(None)
        self._thread.join(timeout=self._timeout_s)

    def __call__(self, line: str) -> None:
        self._lines.put(line)

    def _write_lines(self) -> None:
        while (line := self._lines.get()) is not None:
            with suppress(OSError):  # nobody listens any more
                self._say(line)


class Tee:
    """Copies a named pipe to stderr and to `copy`, byte by byte, so that progress bars stay alive.

    Nobody who writes is held up: what stderr has not taken after STUCK_S seconds (Ctrl-S, a pager, a connection that
    is gone) is left out there, and what does not fit on the disk in `copy`. A rank that waits would seem to hang.
    """

    def __init__(self, pipe: Path, copy: IO[bytes] | None = None) -> None:
        self._other = copy
        # Held open for writing as well, so that the reader meets no end before the first worker has opened it.
        self._read = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        self._hold = os.open(pipe, os.O_WRONLY)
        os.set_blocking(self._read, True)
        self._screen: Queue[bytes] = Queue(maxsize=_PIECES)
        self._stuck = False
        self._copying = threading.Thread(target=self._copy, name="console relay", daemon=True)
        self._showing = threading.Thread(target=self._show, name="console", daemon=True)

    def __enter__(self) -> Tee:
        self._copying.start()
        self._showing.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._hold)
        self._copying.join(timeout=STUCK_S)
        if not self._copying.is_alive():
            os.close(self._read)
        self._offer(_END)
        if not self._stuck:
            self._showing.join(timeout=STUCK_S)

    def _copy(self) -> None:
        while data := os.read(self._read, 65536):
            if self._other:
                with suppress(OSError):
                    self._other.write(data)
                    self._other.flush()
            self._offer(data)

    def _offer(self, data: bytes) -> None:
        try:
            self._screen.put(data, timeout=0 if self._stuck else STUCK_S)
            self._stuck = False
        except Full:
            self._stuck = True

    def _show(self) -> None:
        while data := self._screen.get():
            with suppress(OSError):  # the terminal is gone
                while data:
                    data = data[os.write(2, data) :]


@contextmanager
def tee_output(file: IO[bytes], pipe: Path, echo: bool) -> Iterator[IO[bytes]]:
    """Where the agent and its workers write: `file`, or with `echo` a pipe that is copied to it and to stderr."""
    if not echo:
        yield file
        return
    os.mkfifo(pipe)
    with Tee(pipe, file), pipe.open("wb", buffering=0) as sink:
        yield sink
