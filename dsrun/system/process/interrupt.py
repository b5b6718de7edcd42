"""Ctrl-C in a process that still imports what it needs: one line, instead of a traceback of whatever is imported."""

import os
import signal
from functools import partial


def end_at_ctrl_c(fd: int = 2) -> None:
    """From here on Ctrl-C ends this process, with 130 and a line on `fd`. Not in a shell's background job, which
    ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, partial(_end, fd))


def raise_at_ctrl_c() -> None:
    """From here on it is KeyboardInterrupt again."""
    if isinstance(signal.getsignal(signal.SIGINT), partial):
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(fd: int, *_: object) -> None:
    # An exception might be swallowed by whatever is being imported, or leave it half loaded. A terminal shows ^C.
    os.write(fd, b"\r\x1b[2Kerror: interrupted\n" if os.isatty(fd) else b"error: interrupted\n")
    os._exit(130)
