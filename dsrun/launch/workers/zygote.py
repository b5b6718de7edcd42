"""The agents of attempts, forked from a zygote or each in an interpreter of its own.

`python -u -m dsrun.launch.workers.zygote FD MODULE IMPORT…` imports once what ranks need, and forks each attempt.

Starting a rank is nine tenths importing, so a fork of this process makes the next step in a fraction of the time. It
must stay forkable: it runs no operation of torch (whose threads a fork would lose) and never initialises CUDA (which
works in no fork); where an import has done so nevertheless, ranks are started cold.

Requests come as JSON lines on the socket FD: {"argv": […], "env": {…}, "ranks": N}. Answers: {"forks": bool} when the
imports are done, {"standby": PID} with a socket, {"agent": PID} when an attempt began, {"ended": STATUS} when its agent
ended (negative: by a signal).

The standby is a fork of the zygote that waits for a request on that socket, and is then the zygote in its place: where
the first was killed, by the kernel for want of memory or by a user, nothing is imported again.

`python -m dsrun.launch.workers.zygote --agent ARGS…` is `python -m torch.distributed.run ARGS…` under a supervisor. It
is torch's own agent with three differences: SIGTERM and SIGUSR1 do not end it but request a stop, which the supervisor
forwards to the ranks; the ranks die with it; and it records how they end."""

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
from types import FrameType
from typing import Any, NoReturn

from dsrun.launch.workers.spawn import FailureRecorder, prefork, replace_environment, start_with
from dsrun.runs.heartbeat import StopRequest, write_stop_file
from dsrun.system import variables
from dsrun.system.imports import deferred, without_collections
from dsrun.system.process.process_end import die_with_parent, end, name_thread

INITIALISING = ("torchao", "bitsandbytes")
"""Packages that ask for the capability of the GPUs when they are imported, which initialises CUDA (torchao's
prototype/mx_formats, bitsandbytes' cuda_specs.py); transformers and peft import them wherever they are installed."""
DEVICE = "/dev/nvidia-uvm"
"""What the driver opens when CUDA is initialised. libcuda.so tells nothing: cuBLASLt maps it with `import torch`."""
# For torch versions whose agent lets one choose. SIGTERM is missing: torch would end the ranks thirty seconds later, in
# the middle of a save.
TORCH_SIGNALS = "SIGINT,SIGHUP,SIGQUIT"


def install_stop_handlers() -> None:
    """From here on SIGTERM and SIGUSR1 write the stop file, which the supervisor reads; unless they are ignored."""
    file = os.environ.get(variables.STOP_FILE)
    if not file:
        return

    def write(signum: int, frame: FrameType | None) -> None:
        write_stop_file(Path(file), StopRequest.now(signal.Signals(signum).name))

    for signum in (signal.SIGTERM, signal.SIGUSR1):
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, write)


def run_agent(argv: Sequence[str], *, module: str | None = None, ranks: int = 0) -> int:
    """Be torch.distributed.run until it ends; returns its exit code.

    `ranks` processes are forked ahead to become `python -m module`; for that, whatever they need should have been
    imported."""
    install_stop_handlers()
    file = os.environ.get(variables.RANKS)
    preforked = prefork(module, ranks) if module else []
    name_thread("agent")
    start_with(FailureRecorder(Path(file) if file else None), module, preforked)
    try:
        import_module("torch.distributed.run").main(list(argv))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        # How torch reports that a rank failed, of which the supervisor prints more in one line.
        if type(error).__name__ != "ChildFailedError":
            traceback.print_exc()
        return 1
    return 0


def main(argv: Sequence[str]) -> int:
    """An agent with `--agent`; else a zygote, until the supervisor closes the socket or dies."""
    if argv[0] == "--agent":
        return run_agent(argv[1:])
    install_stop_handlers()
    channel = socket.socket(fileno=int(argv[0]))
    name_thread("dsrun-warm")
    forks = _prepare(argv[2:])
    _answer(channel, {"forks": forks})
    channel = _with_standby(channel)
    lines = channel.makefile("rb")
    for line in lines:
        request = json.loads(line)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            # Held open in the agent, the socket would not tell the supervisor that the zygote has died.
            lines.close()
            channel.close()
            _attempt(request, argv[1] if forks and argv[1] != "-" else None, parent)
        _answer(channel, {"agent": pid})
        _, status = os.waitpid(pid, 0)
        _answer(channel, {"ended": os.waitstatus_to_exitcode(status)})
    return 0


def _prepare(modules: Sequence[str]) -> bool:
    """Import; returns whether ranks may be forked from here.

    What an import raises ends this process, and appears in the logs of the ranks that are then spawned. A module that
    is missing is skipped."""
    # A count through NVML leaves CUDA alone (torch.cuda.is_available); the ranks get their own environment.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    with without_collections(), deferred(*INITIALISING):
        for name in modules:
            with suppress(ModuleNotFoundError):
                import_module(name)
    # Python counts the background thread of an allocator, which knows how to fork.
    warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning)
    return not cuda_is_initialized()


def _with_standby(channel: socket.socket) -> socket.socket:
    """Fork a standby and return `channel`; in the standby, return its own socket when the first request is there, with
    a standby forked for it in turn."""
    while True:
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid:
            ours.close()
            socket.send_fds(channel, [json.dumps({"standby": pid}).encode() + b"\n"], [theirs.fileno()])
            theirs.close()
            return channel
        theirs.close()
        channel.close()
        channel = ours
        os.setsid()
        name_thread("dsrun-standby")
        if not channel.recv(1, socket.MSG_PEEK):
            os._exit(0)  # the supervisor has gone
        name_thread("dsrun-warm")


def cuda_is_initialized(files: Path = Path("/proc/self/fd")) -> bool:
    """Whether this process has initialised CUDA, by torch or by the driver alone; True where that cannot be found
    out."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return True
    try:
        return any(_target(file) == DEVICE for file in files.iterdir())
    except OSError:
        return True


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:  # the folder that is being read, closed by now
        return ""


def _attempt(request: dict[str, Any], module: str | None, parent: int) -> NoReturn:
    """In the child: be the agent of one attempt."""
    code = 1
    try:
        os.setsid()
        die_with_parent(parent, signal.SIGKILL)
        replace_environment(request["env"])
        code = run_agent(request["argv"], module=module, ranks=int(request["ranks"]))
    except BaseException:
        traceback.print_exc()
    finally:
        end(code)


def _answer(channel: socket.socket, message: dict[str, Any]) -> None:
    channel.sendall(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
