"""Programs on other machines, over srun or ssh: they end when dsrun ends."""

import contextlib
import os
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, TypeVar

from dsrun.errors import MissingError, ToolError, UsageError
from dsrun.system.hostlist import expand_hosts, read_hostfile
from dsrun.wheel.verify import on_node
from dsrun.wheel.verify.probed_machine import last_object

NodeAccess = Literal["srun", "ssh"]
T = TypeVar("T")

# BatchMode: a question for a password would hang unseen.
_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
# --overlap: the allocation's GPUs and processors may be in use by a step already.
_SRUN = ("srun", "--overlap", "--nodes=1", "--ntasks=1", "--quiet")
# One short line without anything that a login shell, csh too, would read in its own way. dsrun/wheel/verify/on_node.py
# comes first on stdin, and runs the program that follows.
_BOOT = "import sys; exec(compile(sys.stdin.buffer.read(int(sys.argv.pop(1))), 'dsrun', 'exec'))"
_ON_NODE = Path(on_node.__file__).read_bytes()
AT_ONCE = 16  # more logins at a time are refused by sshd's MaxStartups on some clusters
_POLL_S = 0.1
_CHUNK = 1 << 20


def way_here(environ: Mapping[str, str] = os.environ) -> NodeAccess:
    """How nodes are reached from here: srun inside a SLURM allocation, else ssh."""
    return "srun" if environ.get("SLURM_JOB_ID") and shutil.which("srun") else "ssh"


@dataclass(frozen=True)
class RemoteNode:
    """A machine and the way to it."""

    name: str
    way: NodeAccess

    def argv(self, command: Sequence[str]) -> list[str]:
        """What runs `command` there. ssh hands one line to the login shell; srun passes the words as they are."""
        if self.way == "srun":
            return [*_SRUN, f"--nodelist={self.name}", *command]
        return [*_SSH, self.name, shlex.join(command)]


def nodes_meant(
    nodes: str | None, hostfile: Path | None, environ: Mapping[str, str], way: NodeAccess | None = None
) -> tuple[RemoteNode, ...]:
    """The nodes of `--nodes`, of a hostfile, or else of the SLURM allocation around this process.

    Raises UsageError when none is given, or both are."""
    if nodes and hostfile:
        raise UsageError("--nodes and --hostfile name the nodes twice", fix="give one of them")
    listed = environ.get("SLURM_JOB_NODELIST")
    if hostfile:
        names = read_hostfile(hostfile)
    elif nodes or listed:
        names = expand_hosts(nodes or listed or "")
    else:
        raise UsageError("no nodes: this is not a SLURM allocation", fix="give --hostfile FILE or --nodes gpu[01-04]")
    there = way or (way_here(environ) if not hostfile else "ssh")
    return tuple(RemoteNode(name, there) for name in names)


class ProgramInterrupted(Exception):
    """Ctrl-C ended the program that ran on a node."""


@dataclass
class NodePool:
    """Calls on many nodes, `at_once` at a time. Ctrl-C ends what runs on them; `stopped` then says so."""

    at_once: int = AT_ONCE
    stopped: bool = False
    _running: set[subprocess.Popen[bytes]] = field(default_factory=set)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def map(
        self, nodes: Sequence[RemoteNode], call: Callable[[RemoteNode], T], instead: Callable[[RemoteNode], T]
    ) -> list[T]:
        """`call` each node; the answers in the order of `nodes`, `instead` for those that Ctrl-C has stopped."""
        futures: list[Future[T]] = []
        with ThreadPoolExecutor(max_workers=max(1, min(self.at_once, len(nodes)))) as pool:
            try:
                futures = [pool.submit(call, node) for node in nodes]
                wait(futures)
            except KeyboardInterrupt:
                self._stop()
                for future in futures:
                    future.cancel()
                wait(futures)
        return [_answer(node, future, instead) for node, future in zip(nodes, futures, strict=False)] + [
            instead(node) for node in nodes[len(futures) :]
        ]

    def _stop(self) -> None:
        with self._guard:
            self.stopped = True
            for process in self._running:
                process.terminate()

    def run(
        self, node: RemoteNode, python: str, program: Path, *arguments: str, seconds: float, data: Path | None = None
    ) -> dict[str, Any]:
        """Run one of dsrun's programs with the interpreter `python` of `node`: the JSON object it printed last.

        The file `data` follows on its stdin. Raises ToolError when it fails or takes longer than `seconds`,
        ProgramInterrupted after Ctrl-C."""
        source = program.read_bytes()
        size = data.stat().st_size if data else 0
        words = [python, "-c", _BOOT, str(len(_ON_NODE)), str(len(source)), str(size), *arguments]
        answer = self.feed(node.argv(words), seconds=seconds, head=_ON_NODE + source, data=data)
        return last_object(answer, python)

    def feed(
        self, argv: Sequence[str], *, seconds: float, head: bytes = b"", data: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run `argv` with `head` and the file `data` on its stdin, which stays open until it ends."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            with self._guard:
                if self.stopped:
                    raise ProgramInterrupted
                process = self._start(argv, out, err)
                self._running.add(process)
            try:
                _wait_for(process, argv[0], seconds, head, data)
            finally:
                with self._guard:
                    self._running.discard(process)
            if self.stopped:
                raise ProgramInterrupted
            for file in (out, err):
                file.seek(0)
            # What a node's login shell prints need not be UTF-8.
            texts = [file.read().decode(errors="replace") for file in (out, err)]
        return subprocess.CompletedProcess(argv, process.returncode, *texts)

    def _start(self, argv: Sequence[str], out: IO[bytes], err: IO[bytes]) -> subprocess.Popen[bytes]:
        try:
            # A group of its own: Ctrl-C is for dsrun, which ends it in order.
            return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=out, stderr=err, process_group=0)
        except FileNotFoundError:
            raise MissingError(f"there is no program {argv[0]}") from None


def _answer(node: RemoteNode, future: Future[T], instead: Callable[[RemoteNode], T]) -> T:
    if future.cancelled() or isinstance(future.exception(), ProgramInterrupted):
        return instead(node)
    return future.result()


def _wait_for(process: subprocess.Popen[bytes], name: str, seconds: float, head: bytes, data: Path | None) -> None:
    """Write to the process, and wait for its end; ToolError when that takes longer than `seconds`."""
    deadline = time.monotonic() + seconds
    writer = threading.Thread(target=_write, args=(process, head, data), daemon=True)
    writer.start()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        raise ToolError(f"{name} did not end within {seconds:g} s") from None
    finally:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(_POLL_S, min(5.0, deadline - time.monotonic())))
            process.kill()
            process.wait()
        writer.join()
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()


def _write(process: subprocess.Popen[bytes], head: bytes, data: Path | None) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError):  # it has ended, and says why itself
        process.stdin.write(head)
        if data:
            with data.open("rb") as file:
                shutil.copyfileobj(file, process.stdin, _CHUNK)
        process.stdin.flush()
