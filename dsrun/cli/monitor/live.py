"""The view that fills the terminal: drawn anew at every look, at a key, and when the window changes its size."""

import os
import select
import signal
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rich.console import Console, Group
from rich.live import Live
from rich.segment import SegmentLines
from rich.text import Text

from dsrun.cli.monitor.section import MonitorSnapshot, TerminalSize
from dsrun.cli.monitor.view import render_view
from dsrun.errors import UsageError

_QUIT = b"qQ\x1b"


def show_live(read: Callable[[], MonitorSnapshot], console: Console, *, interval_s: float) -> MonitorSnapshot:
    """Show what `read` finds until the run is over or the user quits, and return the last snapshot.

    A folder that cannot be read for a moment (a network file system) leaves the last view; the first look raises."""
    snapshot = read()
    ascii_only = console.options.ascii_only
    with _keyboard() as keyboard, _resizes() as resized, Live(console=console, screen=True, auto_refresh=False) as live:

        def draw() -> None:
            """The view, and the hint of the keys in the last row."""
            height = console.size.height - 1
            view = render_view(snapshot, TerminalSize(width=console.width, height=height, ascii_only=ascii_only))
            lines = console.render_lines(view, console.options.update(height=None), pad=False)[:height]
            lines += [[]] * (height - len(lines))
            hint = Text("q quits", style="dim", justify="right", end="")
            live.update(Group(SegmentLines(lines, new_lines=True), hint), refresh=True)

        while not snapshot.is_over:
            draw()
            due = time.monotonic() + interval_s
            while (left := due - time.monotonic()) > 0:
                ready, _, _ = select.select([fd for fd in (keyboard, resized) if fd >= 0], [], [], left)
                if resized in ready:
                    os.read(resized, 1024)
                    draw()
                if keyboard in ready:
                    key = os.read(keyboard, 64)
                    if not key or key[:1] in _QUIT:
                        return snapshot
                    break  # any other key looks at once
            with suppress(UsageError, OSError):
                snapshot = read()
    return snapshot


@contextmanager
def _keyboard() -> Iterator[int]:
    """The terminal's keys one by one and unseen, also where standard input is a pipe; -1 where there is none."""
    try:
        fd = os.open("/dev/tty", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        if not os.isatty(0):
            yield -1
            return
        fd = os.dup(0)
    before = None
    try:
        before = termios.tcgetattr(fd)
        tty.setcbreak(fd)
        yield fd
    finally:
        if before is not None:
            termios.tcsetattr(fd, termios.TCSADRAIN, before)
        os.close(fd)


@contextmanager
def _resizes() -> Iterator[int]:
    """A pipe that can be read from when the window has another size."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    before = signal.signal(signal.SIGWINCH, lambda _signal, _frame: None)
    # The interpreter writes at once; a handler in Python would only run after a select that has just begun to wait.
    wakes = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(wakes)
        signal.signal(signal.SIGWINCH, before)
        os.close(reader)
        os.close(writer)
