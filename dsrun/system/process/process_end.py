"""How processes end: at once, and with their parents.

Run as a program, this is an exec trampoline: `python -I -S process_end.py PARENT[:SIGNAL] argv…` becomes `argv`, tied
to the life of process PARENT.

A file of its own and not a preexec_fn, because Python code between fork and exec may deadlock in a program
with threads; the standard library only, because it runs before any environment of the child counts."""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

# <linux/prctl.h>, prctl(2)
_PR_SET_PDEATHSIG = 1  # survives execve
_PR_SET_NAME = 15


def die_with_parent(parent: int, signum: int = signal.SIGTERM) -> None:
    """Have the kernel send this process `signum` when its parent dies; no effect outside Linux.

    `parent` is the process id of the parent as last known: if it is gone already, the signal is sent at once.
    The kernel means the thread that forked, so that thread must live as long as the parent itself."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), signum)


def name_thread(name: str) -> None:
    """What `ps -o comm` and `top` call the calling thread, cut to 15 bytes; no effect outside Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def with_pdeathsig(argv: Sequence[str], parent: int, signum: int = signal.SIGTERM) -> list[str]:
    """`argv` behind this trampoline: the kernel sends it `signum` when process `parent`, which starts it, dies."""
    return [sys.executable, "-I", "-S", __file__, f"{parent}:{int(signum)}", *argv]


def main(arguments: list[str]) -> None:
    """Tie this process to its parent and become the program."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's own handler would print a traceback
    parent, _, signum = arguments[0].partition(":")
    die_with_parent(int(parent), int(signum or signal.SIGTERM))
    os.execvp(arguments[1], arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])


def end(code: int) -> NoReturn:
    """End this process now, with what it printed written out, whoever still reads it.

    Threads of NCCL, wandb and data loaders can keep a finished interpreter alive for minutes. Those of gloo, which live
    as long as anybody holds a process group (DeepSpeed does), can come to drop a tensor while it is taken apart, and
    then abort a process whose work is done: "terminate called without an active exception"."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
