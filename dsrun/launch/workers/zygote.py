"""`python -u -m dsrun.launch.workers.zygote FD MODULE IMPORT…`: imports once what ranks need, and forks each attempt.

Starting a rank is nine tenths importing, so a fork of this process makes the next step in a fraction of the time. It
must stay forkable: it runs no operation of torch (whose threads a fork would lose) and never initialises CUDA (which
works in no fork); where a driver was loaded nevertheless, ranks are started cold.

Requests come as JSON lines on the socket FD: {"argv": […], "env": {…}, "ranks": N}. Answers: {"forks": bool} when the
imports are done, {"agent": PID} when an attempt began, {"ended": STATUS} when its agent ended (negative: by a signal).
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from dsrun.launch.workers import agent_process
from dsrun.launch.workers.spawn import replace_environment
from dsrun.system.process_end import die_with_parent, end, name_thread

DRIVER = "libcuda.so"


def main(argv: Sequence[str]) -> int:
    """Serve until the supervisor closes the socket; its death ends this process anyway."""
    agent_process.install_stop_handlers()
    channel = socket.socket(fileno=int(argv[0]))
    name_thread("dsrun-warm")
    forks = _prepare(argv[2:])
    lines = channel.makefile("rb")
    _answer(channel, {"forks": forks})
    for line in lines:
        request = json.loads(line)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            lines.close()
            channel.close()
            _attempt(request, argv[1] if forks and argv[1] != "-" else None, parent)
        _answer(channel, {"agent": pid})
        _, status = os.waitpid(pid, 0)
        _answer(channel, {"ended": os.waitstatus_to_exitcode(status)})
    return 0


def _prepare(modules: Sequence[str]) -> bool:
    """Import; returns whether ranks may be forked from here.

    What an import raises ends this process: ranks started cold then tell it in their own logs. A module that is not
    there is passed over.
    """
    # A count through NVML leaves CUDA alone (torch.cuda.is_available); the ranks get their own environment.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    for name in modules:
        with suppress(ModuleNotFoundError):
            import_module(name)
    # Collections in the forks would otherwise write to, and so copy, every page of what was imported.
    gc.collect()
    gc.freeze()
    # Python counts the background thread of an allocator, which knows how to fork.
    warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning)
    return not driver_is_loaded()


def driver_is_loaded(maps: Path = Path("/proc/self/maps")) -> bool:
    """Whether this process has mapped CUDA's driver; where that cannot be found out it is believed."""
    try:
        return DRIVER in maps.read_text(errors="replace")
    except OSError:
        return True


def _attempt(request: dict[str, Any], module: str | None, parent: int) -> NoReturn:
    """In the child: be the agent of one attempt."""
    code = 1
    try:
        os.setsid()
        die_with_parent(parent, signal.SIGKILL)
        replace_environment(request["env"])
        code = agent_process.run(request["argv"], module=module, ranks=int(request["ranks"]))
    except BaseException:
        traceback.print_exc()
    finally:
        end(code)


def _answer(channel: socket.socket, message: dict[str, Any]) -> None:
    channel.sendall(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
