"""Child processes that never outlive the one who started them."""

import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import TypeVar

from dsrun.errors import MissingError, ToolError
from dsrun.system.process.process_end import with_pdeathsig

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_Answer = TypeVar("_Answer")
_POLL_S = 0.1
_KILL_S = 2.0


def exit_of(returncode: int) -> int:
    """The exit code a shell would show for Popen's `returncode`: 128 + n for death by signal n."""
    return 128 - returncode if returncode < 0 else returncode


def within(seconds: float, ask: Callable[[], _Answer], otherwise: _Answer) -> _Answer:
    """What `ask` returns; `otherwise` where that takes longer, as it may for ever: looking up a name, or a file server.
    Its thread is left behind then."""
    answers: list[_Answer] = []
    thread = threading.Thread(target=lambda: answers.append(ask()), daemon=True)
    thread.start()
    thread.join(seconds)
    return answers[0] if answers else otherwise


def start_time(pid: int) -> float | None:
    """When process `pid` began, in seconds since the epoch; None when it is not there, or a zombie."""
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
    except psutil.NoSuchProcess:
        return None


@contextmanager
def handling(handler: Callable[[int, FrameType | None], None], signals: Sequence[int]) -> Iterator[None]:
    """Have `handler` called for `signals` in here, and what handled them before afterwards.

    Python allows handlers in the main thread only; elsewhere signals keep their meaning. A signal that is ignored
    stays so: under `nohup` a hang-up must not stop the run."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handled = [signum for signum in signals if signal.getsignal(signum) is not signal.SIG_IGN]
    before = {signum: signal.signal(signum, handler) for signum in handled}
    try:
        yield
    finally:
        for signum, former in before.items():
            signal.signal(signum, signal.SIG_DFL if former is None else former)


@contextmanager
def interrupted_by_stop_signals() -> Iterator[None]:
    """Have SIGTERM and SIGHUP end what is in here as Ctrl-C does: with KeyboardInterrupt, so that it tidies up."""

    def stop(_signum: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with handling(stop, (signal.SIGTERM, signal.SIGHUP)):
        yield


def run_foreground(
    argv: Sequence[str],
    *,
    output: int | None = None,
    err: bool = True,
    limit_s: float = math.inf,
    grace_s: float = 30,
    stop: signal.Signals = signal.SIGTERM,
    until: Callable[[], bool] = lambda: False,
) -> int:
    """Run `argv` in a session of its own, with `output` as stdout and, with `err`, stderr, and leave no process of
    it behind; it is killed after `limit_s` seconds.

    Returns its exit code, 128 + n for death by signal n. Stop signals reach its process group as `stop`; `grace_s`
    seconds after the first one, or at the third, the session is killed. Then KeyboardInterrupt is raised. It is stopped
    likewise, without that, once `until` is true. Should this process be killed outright, the kernel sends the child
    SIGTERM."""
    stops: list[int] = []
    with handling(lambda signum, _: stops.append(signum), STOP_SIGNALS):
        process = subprocess.Popen(
            with_pdeathsig(argv, os.getpid()), stdout=output, stderr=output if err else None, start_new_session=True
        )
        forwarded, deadline, enough = 0, time.monotonic() + limit_s, False
        try:
            while process.poll() is None:
                enough = enough or until()
                if len(stops) + enough > forwarded:
                    forwarded, deadline = len(stops) + enough, min(deadline, time.monotonic() + grace_s)
                    os.killpg(process.pid, stop)  # not reaped yet, so the group exists
                if len(stops) > 2 or time.monotonic() >= deadline:
                    _end_session(process.pid, 0)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL_S)
        finally:
            _end_session(process.pid, grace_s)
    if stops:
        raise KeyboardInterrupt
    return exit_of(process.returncode)


def _end_session(session: int, grace_s: float) -> None:
    """Ask the processes of `session` to end with SIGTERM, and kill after `grace_s` seconds those that have not."""
    deadline = time.monotonic() + grace_s
    terminated = False
    while (members := _members(session)) and time.monotonic() < deadline + _KILL_S:
        late = time.monotonic() >= deadline
        for pid in members if late or not terminated else ():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        terminated = True
        time.sleep(_POLL_S)


def _members(session: int) -> list[int]:
    import psutil

    found = []
    for pid in psutil.pids():
        with suppress(OSError):  # it has ended meanwhile
            if os.getsid(pid) == session and start_time(pid) is not None:
                found.append(pid)
    return found


def capture(
    argv: Sequence[str],
    *,
    seconds: float,
    changes: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    feed: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `argv` to its end with `changes` to the environment; its stdin is the file `feed`, or nothing.

    Raises ToolError when it takes longer than `seconds` and MissingError when there is no such program."""
    try:
        with feed.open("rb") if feed else nullcontext(subprocess.DEVNULL) as stdin:
            return subprocess.run(
                argv,
                env={**os.environ, **(changes or {})},
                cwd=cwd,
                stdin=stdin,
                capture_output=True,
                text=True,
                errors="replace",  # what a node's login shell prints need not be UTF-8
                timeout=seconds,
                check=False,
            )
    except subprocess.TimeoutExpired as error:
        raise ToolError(f"{argv[0]} did not end within {seconds:g} s") from error
    except FileNotFoundError as error:
        raise MissingError(f"there is no program {argv[0]}") from error
