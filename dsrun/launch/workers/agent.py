"""Starts the agent of an attempt for its supervisor: forked from a zygote, or in a new interpreter."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO

from dsrun.system.process.process_end import with_pdeathsig

SEND_S = 60.0
"""Seconds in which a zygote must take a request: one with a large environment only when it has imported."""

AGENT_IMPORTS = ("torch.distributed.run",)

# What every worker of dsrun.train imports sooner or later.
WORKER_IMPORTS = ("dsrun.train.worker", "dsrun.train.run", "dsrun.train.decide_plan", "dsrun.train.model.tables")


class SpawnStarter:
    """A new interpreter for every agent and every rank."""

    is_ready = True

    def __init__(self, output: IO[bytes]) -> None:
        self._output = output

    def start(self, argv: Sequence[str], env: Mapping[str, str], *, ranks: int) -> subprocess.Popen[bytes]:
        """Start torch.distributed.run with `argv` for `ranks` ranks in the environment `env`."""
        command = [sys.executable, "-m", "dsrun.launch.workers.zygote", "--agent", *argv]
        return _spawn(command, env, self._output)

    def kept_processes(self) -> set[int]:
        """Processes that outlive an attempt."""
        return set()


class StandbyZygote:
    """A fork of the zygote that waits to replace it, with what is used of Popen. This process is not its parent and
    cannot wait for it: its socket tells when it ends."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid = pid
        self.channel = channel

    def poll(self) -> int | None:
        """None while it lives."""
        try:
            return None if self.channel.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) else -signal.SIGKILL
        except BlockingIOError:
            return None
        except ConnectionError:
            return -signal.SIGKILL


class ZygoteStarter:
    """A process that has imported what agents need, and forks them: see `dsrun.launch.workers.zygote`.

    Where it has imported `module` and `imports` as well, ranks that run `module` are forked too. The agent that runs
    is this object, as there is one at a time."""

    def __init__(self, module: str | None, imports: Sequence[str], env: Mapping[str, str], output: IO[bytes]) -> None:
        self._arguments = [module or "-", *AGENT_IMPORTS, *imports]
        self._env = env
        self._output = output
        self._pid: int | None = None
        self._code: int | None = None
        # Where the imports fail: the logs of spawned ranks show how.
        self._spawner: SpawnStarter | None = None
        self._has_imported = False
        self._begin()

    def _begin(self) -> None:
        self._standby: StandbyZygote | None = None
        self.process: subprocess.Popen[bytes] | StandbyZygote
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-u", "-m", "dsrun.launch.workers.zygote", str(theirs.fileno())]
            self.process = _spawn([*command, *self._arguments], self._env, self._output, keep=theirs.fileno())
        self._listen(ours)

    def _listen(self, channel: socket.socket) -> None:
        channel.setblocking(False)
        self._socket = channel
        self._sockets: list[socket.socket] = []
        self._rest = b""

    def _replace(self) -> None:
        """After the zygote has died: its standby in its place, or a new one."""
        self._read_answers()
        standby, self._standby = self._standby, None
        self._socket.close()
        if standby is None or standby.poll() is not None:
            if standby:
                standby.channel.close()
            self._begin()
            return
        self.process = standby
        self._listen(standby.channel)

    def start(self, argv: Sequence[str], env: Mapping[str, str], *, ranks: int) -> "AgentProcess":
        code = self.process.poll()
        # It ended by itself: its imports failed, and would again. One that was killed (below 0) is replaced.
        if self._spawner is None and code is not None and code > 0:
            self._socket.close()
            self._spawner = SpawnStarter(self._output)
        if self._spawner is not None:
            return self._spawner.start(argv, env, ranks=ranks)
        if code is not None:
            self._replace()
        self._pid = self._code = None
        request = {"argv": list(argv), "env": dict(env), "ranks": ranks}
        # One that has just died `poll` returns; one that is stopped, and whose socket is full, starts no rank in time.
        with suppress(ConnectionError, TimeoutError):
            self._socket.settimeout(SEND_S)
            self._socket.sendall(json.dumps(request).encode() + b"\n")
        self._socket.setblocking(False)
        return self

    @property
    def is_ready(self) -> bool:
        """Whether all is imported, or never will be."""
        self._read_answers()
        return self._has_imported or self.process.poll() is not None

    def kept_processes(self) -> set[int]:
        if self._spawner is not None:
            return set()
        # The number of one that has ended may belong to anybody by now.
        self._read_answers()
        kept = (self.process, self._standby)
        return {each.pid for each in kept if each is not None and each.poll() is None}

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
            while True:
                data, fds, _, _ = socket.recv_fds(self._socket, 65536, 1)
                for fd in fds:
                    os.set_inheritable(fd, False)
                    self._sockets.append(socket.socket(fileno=fd))
                if not data:
                    break
                self._rest += data
        *lines, self._rest = self._rest.split(b"\n")
        for answer in map(json.loads, lines):
            self._pid = answer.get("agent", self._pid)
            self._code = answer.get("ended", self._code)
            self._has_imported = self._has_imported or "forks" in answer
            if "standby" in answer:
                self._standby = StandbyZygote(answer["standby"], self._sockets.pop(0))


AgentProcess = subprocess.Popen[bytes] | ZygoteStarter
AgentStarter = SpawnStarter | ZygoteStarter


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
