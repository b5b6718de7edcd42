"""Ctrl-C in a process that still imports what it needs: one line, instead of a traceback of whatever is imported."""

import os
import signal


def end_at_ctrl_c() -> None:
    """From here on Ctrl-C ends this process, with 130. Not in a shell's background job, which ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_at_ctrl_c() -> None:
    """From here on it is KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(*_: object) -> None:
    # An exception might be swallowed by whatever is being imported, or leave it half loaded. A terminal shows ^C.
    os.write(2, b"\nerror: interrupted\n" if os.isatty(2) else b"error: interrupted\n")
    os._exit(130)
