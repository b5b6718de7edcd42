"""Starts the agent of an attempt for its supervisor: forked from a zygote, or in a new interpreter."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO

from dsrun.system.process_end import with_pdeathsig

AGENT_IMPORTS = ("torch.distributed.run",)

# What every worker of dsrun.train imports sooner or later.
WORKER_IMPORTS = ("dsrun.train.worker", "dsrun.train.run", "dsrun.train.plan")


class SpawnStarter:
    """A new interpreter for every agent and every rank."""

    def __init__(self, output: IO[bytes]) -> None:
        self._output = output

    def start(self, argv: Sequence[str], env: Mapping[str, str], *, ranks: int) -> subprocess.Popen[bytes]:
        """Start torch.distributed.run with `argv` for `ranks` ranks in the environment `env`."""
        command = [sys.executable, "-m", "dsrun.launch.workers.zygote", "--agent", *argv]
        return _spawn(command, env, self._output)

    def kept_processes(self) -> set[int]:
        """Processes that outlive an attempt."""
        return set()


class ZygoteStarter:
    """A process that has imported what agents need, and forks them: see `dsrun.launch.workers.zygote`.

    Where it has imported `module` and `imports` as well, ranks that run `module` are forked too. The agent that runs
    is this object, as there is one at a time.
    """

    def __init__(self, module: str | None, imports: Sequence[str], env: Mapping[str, str], output: IO[bytes]) -> None:
        self._arguments = [module or "-", *AGENT_IMPORTS, *imports]
        self._env = env
        self._output = output
        self._begin()

    def _begin(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-u", "-m", "dsrun.launch.workers.zygote", str(theirs.fileno())]
            self.process = _spawn([*command, *self._arguments], self._env, self._output, keep=theirs.fileno())
        ours.setblocking(False)
        self._socket = ours
        self._rest = b""

    def start(self, argv: Sequence[str], env: Mapping[str, str], *, ranks: int) -> Agent:
        code = self.process.poll()
        if code is not None:
            self._socket.close()
            if code > 0:
                # The imports themselves fail: the logs of spawned ranks show how.
                return SpawnStarter(self._output).start(argv, env, ranks=ranks)
            self._begin()
        self._pid: int | None = None
        self._code: int | None = None
        request = {"argv": list(argv), "env": dict(env), "ranks": ranks}
        with suppress(ConnectionError):  # it has just died, which `poll` returns
            self._socket.setblocking(True)
            self._socket.sendall(json.dumps(request).encode() + b"\n")
            self._socket.setblocking(False)
        return self

    def kept_processes(self) -> set[int]:
        # The number of one that has ended may belong to anybody by now.
        return {self.process.pid} if self.process.poll() is None else set()

    @property
    def pid(self) -> int | None:
        """The agent's process id, None while it is not there yet."""
        self._read_answers()
        return self._pid

    def poll(self) -> int | None:
        """The agent's return code as Popen gives it, None while it runs."""
        # In this order: an answer may lie in the socket of a process that has died since.
        dead = self.process.poll()
        self._read_answers()
        return dead if self._code is None else self._code

    def _read_answers(self) -> None:
        with suppress(BlockingIOError, ConnectionError):
            while data := self._socket.recv(65536):
                self._rest += data
        *lines, self._rest = self._rest.split(b"\n")
        for answer in map(json.loads, lines):
            self._pid = answer.get("agent", self._pid)
            self._code = answer.get("ended", self._code)


Agent = subprocess.Popen[bytes] | ZygoteStarter
Starter = SpawnStarter | ZygoteStarter


def _spawn(
    argv: Sequence[str], env: Mapping[str, str], output: IO[bytes], *, keep: int | None = None
) -> subprocess.Popen[bytes]:
    """Start `argv` in a session of its own, to be killed by the kernel when this process dies."""
    return subprocess.Popen(
        with_pdeathsig(argv, os.getpid(), signal.SIGKILL),
        env=env,
        stdout=output,
        stderr=output,
        start_new_session=True,
        pass_fds=() if keep is None else (keep,),
    )
