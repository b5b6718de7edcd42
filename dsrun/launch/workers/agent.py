"""The agent of an attempt, seen from its supervisor: how it is started, warm or cold, and the voice of rank 0."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Full, Queue
from typing import IO, Protocol

from dsrun.system.tether import tethered

CONSOLE_VARIABLE = "DSRUN_CONSOLE"
TERMINAL_VARIABLE = "DSRUN_TERMINAL"
FAILURES_VARIABLE = "DSRUN_FAILURES"
STOP_FILE_VARIABLE = "DSRUN_STOP_FILE"
SAVE_ON_VARIABLE = "DSRUN_SAVE_ON"
ATTEMPT_VARIABLE = "DSRUN_ATTEMPT"

AGENT_IMPORTS = ("torch.distributed.run",)
STUCK_S = 5.0
"""Seconds that a terminal may take no words before they go on without it."""
_PIECES = 16
_END = b""

# What every worker of dsrun.train imports sooner or later.
WORKER_IMPORTS = ("dsrun.train.worker", "dsrun.train.run", "dsrun.train.demos")


class Agent(Protocol):
    """A running torch.distributed.run."""

    def pid(self) -> int | None:
        """Its process id, None while it is not there yet."""

    def poll(self) -> int | None:
        """Its return code as Popen gives it, None while it runs."""


class Starter(Protocol):
    """Starts agents, one at a time."""

    def start(self, argv: Sequence[str], env: Mapping[str, str], *, ranks: int) -> Agent:
        """Start torch.distributed.run with `argv` for `ranks` ranks in the environment `env`."""

    def spared(self) -> set[int]:
        """Processes that outlive an attempt."""


class Cold:
    """A new interpreter for every agent and every rank."""

    def __init__(self, output: IO[bytes]) -> None:
        self._output = output

    def start(self, argv: Sequence[str], env: Mapping[str, str], *, ranks: int) -> Agent:
        command = [sys.executable, "-m", "dsrun.launch.workers.agent_process", *argv]
        return _Process(_tied(command, env, self._output))

    def spared(self) -> set[int]:
        return set()


class _Process:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def pid(self) -> int | None:
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.poll()


class Warm:
    """A process that has imported what agents need, and forks them. See `dsrun.launch.workers.zygote`.

    Where it has imported `module` and `imports` as well, ranks that run `module` are forked too; without `module` they
    are started as ever.
    """

    def __init__(
        self, module: str | None, imports: Sequence[str], env: Mapping[str, str], output: IO[bytes]
    ) -> None:
        self._words = [module or "-", *AGENT_IMPORTS, *imports]
        self._env = env
        self._output = output
        self._begin()

    def _begin(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-u", "-m", "dsrun.launch.workers.zygote", str(theirs.fileno())]
            self.process = _tied([*command, *self._words], self._env, self._output, keep=theirs.fileno())
        ours.setblocking(False)
        self._socket = ours
        self._rest = b""

    def start(self, argv: Sequence[str], env: Mapping[str, str], *, ranks: int) -> Agent:
        code = self.process.poll()
        if code is not None:
            self._socket.close()
            if code > 0:
                # The imports themselves fail: ranks started cold say in their own logs how.
                return Cold(self._output).start(argv, env, ranks=ranks)
            self._begin()
        request = {"argv": list(argv), "env": dict(env), "ranks": ranks}
        with suppress(ConnectionError):  # it has just died, as `poll` will tell
            self._socket.setblocking(True)
            self._socket.sendall(json.dumps(request).encode() + b"\n")
            self._socket.setblocking(False)
        return _Forked(self)

    def spared(self) -> set[int]:
        # The number of one that has ended may belong to anybody by now.
        return {self.process.pid} if self.process.poll() is None else set()

    def answers(self) -> Iterator[dict[str, int]]:
        """What it has said since the last call."""
        with suppress(BlockingIOError, ConnectionError):
            while data := self._socket.recv(65536):
                self._rest += data
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            yield json.loads(line)


class _Forked:
    """An agent that is a child of the warm process."""

    def __init__(self, warm: Warm) -> None:
        self._warm = warm
        self._pid: int | None = None
        self._code: int | None = None

    def pid(self) -> int | None:
        self._hear()
        return self._pid

    def poll(self) -> int | None:
        # In this order: an answer may lie in the socket of a process that has died since.
        dead = self._warm.process.poll()
        self._hear()
        return dead if self._code is None else self._code

    def _hear(self) -> None:
        for answer in self._warm.answers():
            self._pid = answer.get("agent", self._pid)
            self._code = answer.get("ended", self._code)


def _tied(
    argv: Sequence[str], env: Mapping[str, str], output: IO[bytes], *, keep: int | None = None
) -> subprocess.Popen[bytes]:
    """Start `argv` in a session of its own, to be killed by the kernel when this process dies."""
    return subprocess.Popen(
        tethered(argv, os.getpid(), signal.SIGKILL),
        env=env,
        stdout=output,
        stderr=output,
        start_new_session=True,
        pass_fds=() if keep is None else (keep,),
    )


class Relay:
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

    def __enter__(self) -> Relay:
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
def echoed(file: IO[bytes], pipe: Path, echo: bool) -> Iterator[IO[bytes]]:
    """Where the agent and its workers write: `file`, or with `echo` a pipe that is copied to it and to stderr."""
    if not echo:
        yield file
        return
    os.mkfifo(pipe)
    with Relay(pipe, file), pipe.open("wb", buffering=0) as sink:
        yield sink
