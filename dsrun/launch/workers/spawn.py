"""Starts the ranks of an attempt in their agent: forked from a zygote that has their imports, else spawned.

Runs in `dsrun.launch.workers.zygote`. Records process ids and exit codes, one JSON object a line, in a file for
the supervisor, which is not the parent of the ranks and could not wait for them."""

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, Self

from dsrun.system.process.process_end import die_with_parent, end, name_thread, with_pdeathsig

_WAIT_S = 0.02
_MULTIPROCESSING = "torch.distributed.elastic.multiprocessing"


@dataclass(frozen=True)
class RankStatus:
    """One line of the file: rank `rank` has process `pid`, and ended with `status` (negative: signal), if it has."""

    rank: int
    pid: int
    status: int | None = None


def read_rank_statuses(file: Path) -> list[RankStatus]:
    """All that the agent has written so far; a line that it is just writing is left out."""
    try:
        lines = file.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    return [RankStatus(**json.loads(line)) for line in lines]


class FailureRecorder:
    """Writes the file."""

    def __init__(self, file: Path | None) -> None:
        self._fd = -1 if file is None else os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, rank: int, pid: int, status: int | None = None) -> None:
        if self._fd >= 0:
            line = json.dumps({"rank": rank, "pid": pid, "status": status})
            os.write(self._fd, line.encode() + b"\n")


class ForkedProcess:
    """A process of this one's own, with what torch uses of subprocess.Popen."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The return code as Popen gives it, None while it lives."""
        if self.returncode is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            if found:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(f"rank {self.pid}", timeout or 0)
            time.sleep(_WAIT_S)
        return code


class RecordedProcess:
    """A rank whose exit code is recorded as soon as the agent sees it."""

    def __init__(self, process: Any, rank: int, recorder: FailureRecorder) -> None:
        self._process = process
        self._record: Callable[[int], None] | None = partial(recorder.write, rank, process.pid)
        self.pid: int = process.pid
        recorder.write(rank, self.pid)

    def poll(self) -> int | None:
        return self._recorded(self._process.poll())

    def wait(self, timeout: float | None = None) -> int | None:
        return self._recorded(self._process.wait(timeout))

    def _recorded(self, code: int | None) -> int | None:
        if code is not None and self._record:
            self._record(code)
            self._record = None
        return code


class PreforkedRank:
    """A process forked before the agent has begun anything, which waits to become a rank.

    Forked this early it has none of the agent's threads, sockets and signal handlers: only the imports."""

    def __init__(self, module: str, elder: Sequence[Self] = ()) -> None:
        self._socket, theirs = socket.socketpair()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            # Inherited from the agent: held open here, they would keep an elder from seeing that the agent has ended.
            for each in (*elder, self):
                each._socket.close()
            _become_rank(module, theirs, parent)
        theirs.close()
        self._socket.recv(1)  # it leads its own process group from here on, which torch signals

    def exec_rank(self, args: Sequence[str], env: Mapping[str, str], streams: Sequence[str | None]) -> ForkedProcess:
        """Go on as `python -m MODULE args` with the environment `env`; `streams` are files for stdout and stderr."""
        message = {"args": list(args), "env": dict(env), "streams": list(streams)}
        self._socket.sendall(json.dumps(message).encode() + b"\n")
        self._socket.close()
        return ForkedProcess(self._pid)


def prefork(module: str, count: int) -> list[PreforkedRank]:
    """`count` processes to become ranks."""
    preforked: list[PreforkedRank] = []
    for _ in range(count):
        preforked.append(PreforkedRank(module, preforked))
    return preforked


def start_with(recorder: FailureRecorder, module: str | None, preforked: list[PreforkedRank]) -> None:
    """Have torch's agent use `preforked` processes for ranks that run `module`, and spawn all others."""
    base: Any = import_module(f"{_MULTIPROCESSING}.subprocess_handler").SubprocessHandler

    def popen(self: Any, args: Sequence[str], env: dict[str, str]) -> RecordedProcess:
        process: Any
        # As torch.distributed.run puts the command of a module together (config_from_args).
        if preforked and list(args[:4]) == [sys.executable, "-u", "-m", module]:
            streams = [each.name if each else None for each in (self._stdout, self._stderr)]
            process = preforked.pop(0).exec_rank(args[4:], env, streams)
        else:
            process = subprocess.Popen(
                with_pdeathsig(args, os.getpid(), signal.SIGKILL),
                env=env, stdout=self._stdout, stderr=self._stderr, start_new_session=True,
            )  # fmt: skip
        return RecordedProcess(process, int(env["RANK"]), recorder)

    def close(self: Any, death_sig: signal.Signals | None = None) -> None:
        # When one rank has failed, torch sends SIGTERM to the others (SubprocessContext._poll). They would take it as a
        # request to save and exit, which they cannot without the failed one. Ending them is the supervisor's task.
        if death_sig not in (None, signal.SIGTERM):
            base.close(self, death_sig)

    handler = type("RankHandler", (base,), {"_popen": popen, "close": close})
    api: Any = import_module(f"{_MULTIPROCESSING}.api")
    # torch has no hook for how a rank is started; this name is looked up in the module at every start.
    api.get_subprocess_handler = handler
    if given := os.environ.get("PET_SHUTDOWN_TIMEOUT"):
        # torch itself forgets its --shutdown-timeout where a rank has failed, and kills the others 30 s later: _poll of
        # SubprocessContext calls close() without it (torch 2.13, elastic/multiprocessing/api.py).
        close_all = api.SubprocessContext._close
        api.SubprocessContext._close = lambda self, death_sig, timeout=30: close_all(self, death_sig, int(given))


def _become_rank(module: str, channel: socket.socket, parent: int) -> NoReturn:
    """In the child: wait for `exec_rank`, then be a rank."""
    code = 1
    try:
        os.setsid()
        die_with_parent(parent, signal.SIGKILL)
        default_signals()
        channel.sendall(b".")
        with channel.makefile("rb") as lines:
            line = lines.readline()
        channel.close()
        if not line:
            os._exit(0)  # the agent never came as far
        message = json.loads(line)
        for target, file in zip((1, 2), message["streams"], strict=True):
            if file:
                os.dup2(os.open(file, os.O_WRONLY | os.O_APPEND), target)
        replace_environment(message["env"])
        name_thread(f"rank-{os.environ['RANK']}")
        code = run_module(module, message["args"])
    except BaseException:
        traceback.print_exc()
    finally:
        end(code)


def run_module(module: str, args: Sequence[str]) -> int:
    """Run `python -m module args` in this fork of a process that has done other things; its exit code."""
    return run_as_main(["-m", *args], lambda: runpy.run_module(module, run_name="__main__", alter_sys=True))


def run_as_main(argv: Sequence[str], program: Callable[[], object]) -> int:
    """Run `program` as what a new interpreter with `sys.argv` = `argv` was started for; its exit code."""
    _fresh_randomness()
    sys.argv = list(argv)
    try:
        program()
    except SystemExit as left:
        if isinstance(left.code, str):
            print(left.code, file=sys.stderr)
            return 1
        return left.code or 0
    return 0


def default_signals() -> None:
    """Restore the handlers of a new Python; what is ignored stays so, as across an exec."""
    for signum in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD):
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def replace_environment(env: Mapping[str, str]) -> None:
    """Make `env` the whole environment, also of C code."""
    for name in set(os.environ) - set(env):
        del os.environ[name]
    os.environ.update(env)


def _fresh_randomness() -> None:
    """Seed again what an import seeded, or it would be the same in all forks; `random` reseeds itself."""
    numpy, torch = (sys.modules.get(name) for name in ("numpy", "torch"))
    if numpy is not None:
        numpy.random.seed()
    if torch is not None:
        torch.default_generator.seed()
    fingerprint = sys.modules.get("datasets.fingerprint")
    if fingerprint is not None:
        with suppress(AttributeError):
            fingerprint.fingerprint_rng.seed()
