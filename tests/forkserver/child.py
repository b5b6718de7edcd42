"""In a fork: become `python -m MODULE …` or `python -c CODE …` with the environment and streams that were asked for."""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import json
import os
import runpy
import signal
import socket
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from dsrun.launch.workers.spawn import (
    ForkedProcess,
    default_signals,
    replace_environment,
    run_as_main,
    run_module,
)
from dsrun.system.process.process_end import die_with_parent, end, name_thread

# The values of stat in proc(5) that say where the kernel shows a process's command line and environment, counted from
# the third, which follows the name.
_ARGUMENTS, _ENVIRONMENT = slice(45, 47), slice(47, 49)
_SUPERVISORS = (("dsrun", "train"), ("dsrun", "launch"), "tests.integration.supervised")
_WARM = ["-u", "-m", "dsrun.launch.workers.zygote"]


def become(request: Mapping[str, Any], streams: Sequence[int], parent: int) -> NoReturn:
    """Be the process that `request` asks for, to its end; `streams` become stdin, stdout and stderr."""

    def program() -> int:
        if request["session"]:
            os.setsid()
        os.chdir(request["cwd"])
        _imitate_exec(request["argv"], request["env"], streams)
        sys.path[0] = request["cwd"] if request["program"][0] == "-m" else ""
        os.execv = _imitate_execv
        _, name = request["program"]
        if (name, *request["args"][:1]) in _SUPERVISORS or name in _SUPERVISORS:
            _prefork_warm_process()
        return _run(*request["program"], request["args"])

    _to_the_end(program, parent)


def _to_the_end(program: Callable[[], int], parent: int) -> NoReturn:
    """Run it as the last thing that this process does, which `parent` does not outlive."""
    code = 1
    try:
        die_with_parent(parent, signal.SIGKILL)
        # The server ignores Ctrl-C, and default_signals leaves be what is ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        default_signals()
        code = program()
        threading._shutdown()
        atexit._run_exitfuncs()
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
    finally:
        end(code)


def _run(kind: str, program: str, args: Sequence[str]) -> int:
    """As `python -m program args`, or with -c; its exit code."""
    if kind == "-m":
        return run_module(program, args)
    main = sys.modules["__main__"] = ModuleType("__main__")
    return run_as_main(["-c", *args], lambda: exec(compile(program, "<string>", "exec"), main.__dict__))


def _imitate_exec(
    argv: Sequence[str], env: Mapping[str, str], streams: Sequence[int], *, keep: Sequence[int] = ()
) -> None:
    """Have the command line, environment and standard streams that a new interpreter would have; `keep` stays open."""
    _take_over(streams, keep=keep, unbuffered="-u" in argv[1:2])
    # First: the C library's variables may still lie where the kernel shows them.
    os.environ.clear()
    replace_environment(env)
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    ours_first = sorted(env, key=lambda name: not name.startswith("DSRUN_"))
    _overwrite(fields[_ARGUMENTS], [os.fsencode(word) for word in argv])
    _overwrite(fields[_ENVIRONMENT], [os.fsencode(f"{name}={env[name]}") for name in ours_first])
    tempfile.tempdir = None
    # What runpy says of a module that was imported already.
    warnings.filterwarnings("ignore", message=".* found in sys.modules after import", category=RuntimeWarning)
    for option in filter(None, env.get("PYTHONWARNINGS", "").split(",")):
        warnings._setoption(option)
    name_thread(Path(argv[0]).name)
    _take_in_python_path(env)


def _take_over(streams: Sequence[int], *, keep: Sequence[int], unbuffered: bool) -> None:
    """Make `streams` the standard ones, and close all else."""
    # Copies first: a stream may be one of the numbers that another is to get.
    for target, copy in enumerate([fcntl.fcntl(fd, fcntl.F_DUPFD, 3) for fd in streams]):
        os.dup2(copy, target)
    for fd in [int(each.name) for each in Path("/proc/self/fd").iterdir()]:
        if fd > 2 and fd not in keep:
            with suppress(OSError):  # the one through which the folder was read
                os.close(fd)
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        errors = "backslashreplace" if name == "stderr" else "strict"
        stream = os.fdopen(fd, "w" if fd else "r", encoding="utf-8", errors=errors, closefd=False)
        if fd:
            lines = name == "stderr" or os.isatty(fd)
            stream.reconfigure(line_buffering=lines or unbuffered, write_through=unbuffered)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _take_in_python_path(env: Mapping[str, str]) -> None:
    """What Python would do with the folders of PYTHONPATH that the server did not know: look there, and customize."""
    new = [each for each in env.get("PYTHONPATH", "").split(os.pathsep) if each and each not in sys.path]
    sys.path[1:1] = new
    for file in (Path(each, "sitecustomize.py") for each in new):
        if file.exists():
            runpy.run_path(str(file))


def _imitate_execv(path: str, argv: Sequence[str]) -> NoReturn:
    """`python -m MODULE …` in place of this program; what was imported stays."""
    if list(argv[:2]) != [sys.executable, "-m"]:
        os.execve(path, list(argv), os.environ)
    _to_the_end(lambda: run_module(argv[2], argv[3:]), os.getppid())


def _overwrite(span: Sequence[bytes], words: Sequence[bytes]) -> None:
    """Write `words` where /proc shows them, as many as there is room for."""
    start, stop = map(int, span)
    data = bytearray()
    for word in words:
        if len(data) + len(word) + 1 < stop - start:
            data += word + b"\0"
    ctypes.memset(start, 0, stop - start)
    ctypes.memmove(start, bytes(data), len(data))


def _prefork_warm_process() -> None:
    """Have the supervisor's first warm process forked from here instead of started.

    It is forked before the supervisor has any threads, and waits until it is needed. A second one is started as ever.
    """
    from dsrun.launch.workers import agent

    ours, theirs = socket.socketpair()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        ours.close()
        _to_the_end(lambda: _become_warm(theirs), parent)
    theirs.close()
    ours.recv(1)
    start = agent._spawn
    waiting = [pid]

    def tied(argv: Sequence[str], env: Mapping[str, str], output: Any, *, keep: int | None = None) -> Any:
        if not waiting or keep is None or list(argv[1:4]) != _WARM:
            return start(argv, env, output, keep=keep)
        request = {"argv": list(argv), "env": dict(env)}
        socket.send_fds(ours, [json.dumps(request).encode()], [output.fileno(), keep])
        ours.close()
        return ForkedProcess(waiting.pop())

    agent._spawn = tied
    atexit.register(_dismiss, ours, waiting)


def _dismiss(channel: socket.socket, waiting: list[int]) -> None:
    """A supervisor leaves nobody behind."""
    channel.close()
    for pid in waiting:
        os.waitpid(pid, 0)


def _become_warm(channel: socket.socket) -> int:
    from dsrun.launch.workers import zygote

    os.setsid()
    channel.sendall(b".")
    said, fds, _, _ = socket.recv_fds(channel, 1 << 20, 2)
    if not said:
        return 0  # no supervisor ever wanted it
    request = json.loads(said)
    output, connection = fds
    _imitate_exec(request["argv"], request["env"], [0, output, output], keep=[connection])
    return zygote.main([str(connection), *request["argv"][5:]])
