"""Starting the workers and staying with them: their voice, their end, and why they failed."""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from dsrun.launch.failures import first_failure
from dsrun.system.proc import run_foreground

CONSOLE_VARIABLE = "DSRUN_CONSOLE"
TERMINAL_VARIABLE = "DSRUN_TERMINAL"
FAILURES_VARIABLE = "DSRUN_FAILURES"

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# The last table that torch.distributed.run prints names each failed worker's exit code.
EXIT_CODES = re.compile(r"exitcode\s*:\s*(-?\d+)")


@dataclass(frozen=True)
class Outcome:
    """How the workers ended: the exit code to pass on, and one line where they failed."""

    exit_code: int
    message: str | None = None
    log: str | None = None


def run_agent(
    argv: Sequence[str], env: Mapping[str, str], log: Path, *, terminal_width: int | None, echo: bool = False
) -> Outcome:
    """Run torch.distributed.run to its end.

    Rank 0 speaks to the user through a named pipe. The agent's own output, which repeats every failure as a table and
    a traceback, goes to `log`, and with `echo` (--debug) to stderr as well. The exit code is that of the worker that
    failed first, as the agent's is always 1.
    """
    with tempfile.TemporaryDirectory(prefix="dsrun-") as scratch:
        pipe = Path(scratch, "console")
        os.mkfifo(pipe)
        variables = {CONSOLE_VARIABLE: str(pipe), FAILURES_VARIABLE: scratch}
        if terminal_width:
            variables[TERMINAL_VARIABLE] = str(terminal_width)
        with _Relay(pipe), log.open("ab") as file, _echoed(file, Path(scratch, "output"), echo) as sink:
            code = run_foreground(argv, {**env, **variables}, forward=STOPPING, stdout=sink, stderr=sink)
        return _outcome(code, Path(scratch), log)


class _Relay:
    """Copies a named pipe to stderr and to `copy`, byte by byte, so that progress bars stay alive."""

    def __init__(self, pipe: Path, copy: IO[bytes] | None = None) -> None:
        self._other = copy
        # Held open for writing as well, so that the reader meets no end before the first worker has opened it.
        self._read = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        self._hold = os.open(pipe, os.O_WRONLY)
        os.set_blocking(self._read, True)
        self._thread = threading.Thread(target=self._copy, name="console relay", daemon=True)

    def __enter__(self) -> _Relay:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._hold)
        self._thread.join(timeout=5)
        os.close(self._read)

    def _copy(self) -> None:
        sys.stderr.flush()
        while data := os.read(self._read, 65536):
            os.write(2, data)
            if self._other:
                self._other.write(data)
                self._other.flush()


@contextmanager
def _echoed(file: IO[bytes], pipe: Path, echo: bool) -> Iterator[IO[bytes]]:
    """Where the agent and its workers write: `file`, or with `echo` a pipe that is copied to it and to stderr."""
    if not echo:
        yield file
        return
    os.mkfifo(pipe)
    with _Relay(pipe, file), pipe.open("wb", buffering=0) as sink:
        yield sink


def _outcome(code: int, scratch: Path, log: Path) -> Outcome:
    if code == 0:
        return Outcome(0)
    killed = _killed_by(log)
    first = first_failure(scratch, only_expected=killed is not None)
    if first:
        return Outcome(int(first["exit_code"]), str(first["message"]), first["log"])
    if code > 128:
        return Outcome(code)
    if killed:
        hint = " (out of host memory?)" if killed == signal.SIGKILL else ""
        return Outcome(128 + killed, f"a worker was ended by {killed.name}{hint}", str(log))
    return Outcome(code, "a worker failed without a word", str(log))


def _killed_by(log: Path) -> signal.Signals | None:
    """The signal that ended the first worker to go, from the agent's table; the others get SIGTERM from the agent."""
    codes = [-int(found) for found in EXIT_CODES.findall(log.read_text(errors="replace"))]
    return next((signal.Signals(code) for code in codes if code > 0 and code != signal.SIGTERM), None)
