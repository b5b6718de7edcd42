"""Runs a program that dsrun sends to a node, and ends it when dsrun ends.

`python -c 'BOOT' SIZE DATA ARGUMENTS… < SIZE bytes of this file, the program, the data`; see `remote.py`. The program
finds DATA more bytes on stdin. Then stdin stays open: dsrun holds its other end. ssh does not end what it started when
it is killed itself, but the end of stdin arrives, and then this process gets SIGTERM."""

import os
import signal
import sys
import threading


def leave(signum: int, _frame: object) -> None:
    """Signal handler: unwind, so that temporary files go and children are ended."""
    raise SystemExit(128 + signum)


def watch() -> None:
    """Wait for the end of stdin, and end this process."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def run(size: int, data: int) -> None:
    """Run the program of `size` bytes that comes next on stdin; `data`: bytes that it will read from there itself."""
    # The home directory, where ssh begins, is no place to import from.
    sys.path[:] = [place for place in sys.path if place]
    program = compile(sys.stdin.buffer.read(size), "dsrun", "exec")
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(signum, leave)
    if not data:  # else a short read tells
        threading.Thread(target=watch, daemon=True).start()
    exec(program, {"__name__": "__main__"})


if __name__ == "__main__":
    given = int(sys.argv.pop(1)), int(sys.argv.pop(1))
    run(*given)
