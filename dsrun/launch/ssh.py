"""Supervisors on all machines of a hostfile, started from this one: directly here, over ssh elsewhere."""

import json
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from dsrun.errors import EXIT_TOOL_FAILED
from dsrun.launch.environment import ON_THE_COMMAND_LINE
from dsrun.launch.refusals import refusal
from dsrun.system.process.proc import exit_of, handling

FLAG = "--tied"


def first_line(variables: Mapping[str, str]) -> bytes:
    """The first line for a tied supervisor."""
    return json.dumps({"env": dict(variables)}).encode() + b"\n"


def signal_line(signum: int) -> bytes:
    """The line that has a tied supervisor get a signal."""
    return json.dumps({"signal": signal.Signals(signum).name}).encode() + b"\n"


def follow_control_stdin() -> None:
    """Take the environment from stdin and obey it from here on; stdin itself is empty afterwards.

    Raises UsageError when stdin holds something else."""
    control = os.fdopen(os.dup(0), "rb", buffering=0)
    with Path(os.devnull).open("rb") as nothing:
        # No child may read a line that is meant for this process.
        os.dup2(nothing.fileno(), 0)
    line = control.readline()
    try:
        variables = json.loads(line)["env"]
    except (ValueError, KeyError, TypeError):
        raise refusal("remote.tied", flag=FLAG) from None
    os.environ.update({str(name): str(value) for name, value in variables.items()})
    threading.Thread(target=_follow, args=(control,), name="control stdin", daemon=True).start()


def _follow(control: IO[bytes]) -> None:
    with suppress(OSError):  # a reset, where sshd died with something unread
        for line in control:
            with suppress(ValueError, KeyError, TypeError):
                signum = signal.Signals[json.loads(line)["signal"]]
                # To the main thread, whose waiting it interrupts; os.kill would leave the choice to the kernel.
                signal.pthread_kill(threading.main_thread().ident or 0, signum)
    # Not SIGTERM, which would ask all nodes to stop: this one is lost, and its reaper ends what it leaves.
    os.kill(os.getpid(), signal.SIGKILL)


# BatchMode: a question for a password would hang unseen. ServerAlive: a machine that is gone is noticed
# after 15 s. -T: with a terminal ssh would turn what is sent over stdin into key strokes.
SSH = (
    "ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5",
    "-o", "ServerAliveCountMax=3",
)  # fmt: skip
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)

_POLL_S = 0.1
# What has run for so long had found the others: worth another try when it ends alone.
_SETTLED_S = 20.0
# The other supervisors end with the first one; those that have not by then are made to.
_LEAVE_S = 10.0
_ENDING_S = 5.0
# Within this time after a supervisor the first one ends too, when it was the run that ended.
_TOGETHER_S = 3.0
# How often a lost machine is called, which may be starting up.
_CALL_S = 15.0


@dataclass(frozen=True, kw_only=True)
class RemoteSupervisor:
    """A supervisor to start: where, by which command, and the first line for its stdin."""

    name: str
    argv: tuple[str, ...]
    first_line: bytes


def remote_argv(host: str, command: Sequence[str], *, folder: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The ssh command that runs `command` in `folder` of `host`, with the variables Python needs to start."""
    early = [f"{name}={environ[name]}" for name in ON_THE_COMMAND_LINE if name in environ]
    there = ["sh", "-c", 'cd "$1" && shift && exec "$@"', "dsrun", folder, "env", *early, *command]
    return (*SSH, host, shlex.join(there))


@dataclass
class _RunningSupervisor:
    """A started supervisor. `begun` and `ended` are when (CLOCK_MONOTONIC, seconds) it was started and first seen to be
    gone; `losses` counts those before it on this machine that were lost."""

    remote: RemoteSupervisor
    process: subprocess.Popen[bytes]
    begun: float = field(default_factory=time.monotonic)
    ended: float | None = None
    losses: int = 0

    @property
    def joined_run(self) -> bool:
        """Whether it ran for so long that it must have found the others."""
        return self.ended is not None and self.ended - self.begun >= _SETTLED_S

    @property
    def is_unreachable(self) -> bool:
        """Whether ssh cannot reach a machine, yet or again, that has had its part in the run."""
        return self.losses > 0 and not self.joined_run and _by_ssh(self)


def run_on_hosts(remotes: Sequence[RemoteSupervisor], *, max_restarts: int, notify: Callable[[str], None]) -> int:
    """Start all supervisors, the first node's first, and stay until they have ended; its exit code.

    Signals are passed on to all of them. One that ends alone, as when its machine is lost, is started again
    up to `max_restarts` times, for the first node waits for it, and says when it has waited long enough; at the start
    it ends them all."""
    signals: list[int] = []
    with handling(lambda signum, _: signals.append(signum), FORWARDED):
        running = [_start(remote) for remote in remotes]
        try:
            code = _watch_until_end(running, signals, max_restarts, notify)
            _wait(running, _LEAVE_S, signals)
            return code
        finally:
            _end(running)


def _start(remote: RemoteSupervisor) -> _RunningSupervisor:
    try:
        # Not in the terminal's foreground group: Ctrl-C would end ssh instead of asking the supervisors.
        process = subprocess.Popen(remote.argv, stdin=subprocess.PIPE, start_new_session=True)
    except FileNotFoundError:
        raise refusal("remote.no_program", program=remote.argv[0]) from None
    running = _RunningSupervisor(remote, process)
    _write(running, remote.first_line)
    return running


def _watch_until_end(
    running: list[_RunningSupervisor], signals: list[int], max_restarts: int, notify: Callable[[str], None]
) -> int:
    """The exit code of the first node's supervisor, or of one without which nothing can begin."""
    first = running[0]
    while first.process.poll() is None:
        _forward(running, signals)
        now = time.monotonic()
        for index, each in enumerate(running):
            if each.process.poll() is None or each.process.returncode == 0:
                continue
            each.ended = each.ended or now
            if now - each.ended < (_CALL_S if each.is_unreachable else _TOGETHER_S):
                continue
            if not each.is_unreachable:
                if not each.joined_run or each.losses >= max_restarts:
                    notify(f"{each.remote.name}: {_reason(each)}; without it the run cannot go on")
                    _end(running)
                    return EXIT_TOOL_FAILED if _by_ssh(each) else exit_of(each.process.returncode)
                notify(f"{each.remote.name}: {_reason(each)}; its supervisor is started again")
            running[index] = _start(each.remote)
            running[index].losses = each.losses + each.joined_run
        time.sleep(_POLL_S)
    if _by_ssh(first):
        notify(f"{first.remote.name}: {_reason(first)}")
        return EXIT_TOOL_FAILED
    return exit_of(first.process.returncode)


def _by_ssh(each: _RunningSupervisor) -> bool:
    """Whether ssh itself failed, which is exit code 255."""
    return each.remote.argv[0] == SSH[0] and each.process.returncode == 255


def _reason(each: _RunningSupervisor) -> str:
    if _by_ssh(each):
        return "ssh has lost it, or cannot reach it"
    return f"its supervisor ended with exit code {exit_of(each.process.returncode)}"


def _forward(running: Sequence[_RunningSupervisor], signals: list[int]) -> None:
    while signals:
        line = signal_line(signals.pop(0))
        for each in running:
            _write(each, line)


def _wait(running: Sequence[_RunningSupervisor], seconds: float, signals: list[int]) -> None:
    deadline = time.monotonic() + seconds
    while any(each.process.poll() is None for each in running) and time.monotonic() < deadline:
        _forward(running, signals)
        time.sleep(_POLL_S)


def _end(running: Sequence[_RunningSupervisor]) -> None:
    """Close their stdin; what has not ended then is killed, ssh and supervisors alike."""
    for each in running:
        if each.process.stdin:
            with suppress(OSError):
                each.process.stdin.close()
    _wait(running, _ENDING_S, [])
    for each in running:
        if each.process.poll() is None:
            each.process.kill()
        with suppress(subprocess.TimeoutExpired):
            each.process.wait(_ENDING_S)


def _write(each: _RunningSupervisor, line: bytes) -> None:
    if each.process.stdin:
        with suppress(OSError):  # it has ended
            each.process.stdin.write(line)
            each.process.stdin.flush()
