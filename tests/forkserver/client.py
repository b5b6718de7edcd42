"""Starting Python through a fork server: `HEAVY.run([sys.executable, "-m", "dsrun", …])` as with subprocess."""

from __future__ import annotations

import atexit
import json
import os
import pkgutil
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dsrun
from dsrun.collectives.coordination.member import PROGRAM
from dsrun.launch.workers.agent import WORKER_IMPORTS
from tests.forkserver.server import END, PID

ROOT = Path(__file__).parents[2]
# What libraries read when they are imported: with another value a process is started as ever.
READ_BY_PYTHON = ("PYTHON", "LD_", "LC_", "LANG", "HOME")
READ_BY_TORCH = (
    *("HF_", "TRANSFORMERS_", "DATASETS_", "DS_", "XDG_", "CUDA_", "OMP_", "MKL_", "KMP_"),
    *("MALLOC_", "TOKENIZERS_"),
)
READ_BY_FORKS = ("PYTHONWARNINGS", "PYTHONPATH")
# With these the heavy imports are done, for processes with the same values or none.
FOR_TORCH = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "DS_ACCELERATOR": "cpu",
    "HF_HUB_OFFLINE": "1",
}
_ROOM = 100_000


class ForkServer:
    """A process that has imported `modules`, started when it is first needed; it ends with this process."""

    def __init__(self, *modules: str, reads: tuple[str, ...], env: Mapping[str, str]) -> None:
        self._modules = modules
        self._reads = reads
        self._env = env
        self._socket: socket.socket | None = None
        self.of_forks = 0.0
        """CPU seconds of the forks that have ended, with their children."""
        self.of_all = 0.0
        """The same with those of processes that a fork has left behind, which are known of later."""
        self._start = threading.Lock()
        self._lock = threading.Lock()

    def popen(self, argv: Sequence[str], **options: Any) -> subprocess.Popen:
        """A fork that runs `python -m …` or `python -c …`, or a new process where no fork could be the same."""
        self._begin()
        argv = [str(word) for word in argv]
        if _request(argv, options) is None or not self._fits(options.get("env")):
            return Killed(argv, **options)
        return Process(self, argv, **options)

    def run(self, argv: Sequence[str], *, capture_output: bool = False, **options: Any) -> Any:
        """As subprocess.run; without its `check`, `input` and `timeout`."""
        if capture_output:
            options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with self.popen(argv, **options) as process:
            out, err = process.communicate()
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    def fork(self, request: dict[str, Any], streams: Sequence[int]) -> tuple[socket.socket, int]:
        """The socket on which a fork's exit code will come, and its process id."""
        assert self._socket is not None
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], [*streams, theirs.fileno()])
        return ours, PID.unpack(ours.recv(PID.size))[0]

    def _fits(self, env: Mapping[str, str] | None) -> bool:
        """Whether what was imported is what would be imported in that environment."""
        env = os.environ if env is None else env
        wanted = {**self._env, **env}
        names = {name for name in {*wanted, *self._imported} if name.startswith(self._reads)}
        return all(wanted.get(name) == self._imported.get(name) for name in names.difference(READ_BY_FORKS))

    def _begin(self) -> None:
        with self._start:
            if self._socket is not None:
                return
            self._imported = {**os.environ, **self._env}
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM * 8)
            command = [sys.executable, "-m", "tests.forkserver.server", str(theirs.fileno()), *self._modules]
            with theirs:
                process = subprocess.Popen(
                    [*command, "x" * _ROOM],
                    env={**self._imported, "DSRUN_TESTS_ROOM": "x" * _ROOM},
                    cwd=ROOT,
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                )
            atexit.register(self._end, process)

    def _end(self, process: subprocess.Popen) -> None:
        assert self._socket is not None
        self._socket.close()
        process.wait()


def _request(argv: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any] | None:
    """What to ask a server for; None for what only a new process can be."""
    unbuffered = argv[1:2] == ["-u"]
    words = argv[1 + unbuffered :]
    plain = {"env", "cwd", "stdin", "stdout", "stderr", "text", "start_new_session", "encoding"}
    if argv[0] != sys.executable or words[0] not in ("-m", "-c") or not plain.issuperset(options):
        return None
    env = os.environ if options.get("env") is None else options["env"]
    return {
        "argv": list(argv),
        "program": words[:2],
        "args": list(words[2:]),
        "env": dict(env),
        "cwd": str(Path(options.get("cwd") or ".").resolve()),
        "session": bool(options.get("start_new_session")),
    }


class Killed(subprocess.Popen):
    """Its `with` block kills it when it ends in an error, as that of a test which has taken too long: a Popen's waits
    without a limit."""

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, *rest)


class Process(Killed):
    """A fork of the server's with all that a Popen has."""

    def __init__(self, server: ForkServer, argv: Sequence[str], **options: Any) -> None:
        self._server = server
        self._request = _request(argv, options)
        self._reading = threading.Lock()
        super().__init__(argv, **options)

    def _execute_child(self, *args: Any) -> None:
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = args[10:16]
        streams = [fd if fd >= 0 else own for own, fd in enumerate((p2cread, c2pwrite, errwrite))]
        self._answer, self.pid = self._server.fork(self._request, streams)
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        return self._told(0)

    def _wait(self, timeout: float | None) -> int | None:
        if self._told(timeout) is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode

    def _told(self, timeout: float | None) -> int | None:
        """The return code, if it comes within that time."""
        until = None if timeout is None else time.monotonic() + timeout
        with self._reading:
            if self.returncode is None:
                left = None if until is None else max(0.0, until - time.monotonic())
                if select.select([self._answer], [], [], left)[0]:
                    data = self._answer.recv(END.size)
                    # A server that was killed takes all its forks along.
                    self.returncode, own, all_ = END.unpack(data) if data else (-9, 0.0, 0.0)
                    self._server.of_forks += own
                    self._server.of_all = max(all_, self._server.of_all)
                    self._answer.close()
        return self.returncode


def _light_modules() -> list[str]:
    """All of dsrun but the room, and the program, that need torch."""
    rooms = [each.name for each in pkgutil.iter_modules(dsrun.__path__) if each.ispkg and each.name != "train"]
    found = [
        each.name for room in rooms for each in pkgutil.walk_packages([f"{dsrun.__path__[0]}/{room}"], f"dsrun.{room}.")
    ]
    return [name for name in found if not name.endswith(".__main__") and name != PROGRAM]


# What a run, its ranks and an export import, and the models of the tests.
_HEAVY_MODULES = [
    *WORKER_IMPORTS,
    "deepspeed.runtime.engine",
    "deepspeed.runtime.zero.muon.original_muon",
    "dsrun.launch.node.work",
    "dsrun.launch.node.run_node",
    "dsrun.cli.train",
    "dsrun.launch.supervisor.supervise",
    "dsrun.launch.workers.zygote",
    "dsrun.train.export.export_model",
    "peft",
    "torch.distributed.run",
    "transformers.models.bart.modeling_bart",
    "transformers.models.llama.modeling_llama",
    "transformers.models.t5.modeling_t5",
]

HEAVY = ForkServer(*_HEAVY_MODULES, reads=READ_BY_PYTHON + READ_BY_TORCH, env=FOR_TORCH)
LIGHT = ForkServer(*_light_modules(), "pydantic", "rich.table", "rich.progress", reads=READ_BY_PYTHON, env={})
