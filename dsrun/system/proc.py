"""Child processes that never outlive the one who started them."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING

from dsrun.errors import MissingError, ToolError
from dsrun.system import variables
from dsrun.system.process_end import tethered

if TYPE_CHECKING:
    import psutil

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Inherited by every descendant: finds those that left the process group, the session and the family tree.
_POLL_S = 0.5
_LOOK_S = 0.1
_KILL_ROUNDS = 20

Output = IO[bytes] | IO[str] | int | None


def exit_of(returncode: int) -> int:
    """The exit code a shell would show for Popen's `returncode`: 128 + n for death by signal n."""
    return 128 - returncode if returncode < 0 else returncode


def start_time(pid: int) -> float | None:
    """When process `pid` began, in seconds since the epoch; None when it is not there, or a zombie."""
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
    except psutil.NoSuchProcess:
        return None


class Family:
    """A child process with all its descendants, whatever group or session they moved to.

    torchrun gives each worker a session of its own, so the child's process group alone does not reach them;
    and a worker whose agent was killed is nobody's child any more.
    """

    def __init__(self, process: subprocess.Popen[bytes], mark: str) -> None:
        self.process = process
        self._mark = mark

    @property
    def pid(self) -> int:
        """Process id of the child, which leads its own session and process group."""
        return self.process.pid

    def signal_group(self, signum: int) -> None:
        """Send `signum` to the child's process group; nothing happens when it is gone."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signum)

    def members(self) -> set[int]:
        """Process ids of the living: the child, its session, its descendants, and all who carry its mark."""
        import psutil

        alive = {process.pid for process in psutil.process_iter() if self._belongs(process)}
        with suppress(psutil.NoSuchProcess):
            if self.process.returncode is None:
                alive |= {child.pid for child in psutil.Process(self.pid).children(recursive=True)}
        return {pid for pid in alive if start_time(pid) is not None}

    def _belongs(self, process: psutil.Process) -> bool:
        import psutil

        if process.pid == os.getpid():
            return False
        with suppress(psutil.Error, OSError):
            if os.getsid(process.pid) == self.pid:
                return True
            return self._mark in process.environ().get(variables.RUN_ID, "").split("/")
        return False

    def end(self, grace_s: float) -> None:
        """Ask every member to end with SIGTERM, and kill after `grace_s` seconds those who have not."""
        deadline = time.monotonic() + grace_s
        if self._reap() and grace_s > 0:
            self._signal_all(signal.SIGTERM)
            while self._reap() and time.monotonic() < deadline:
                time.sleep(_LOOK_S)
        for _ in range(_KILL_ROUNDS):  # a member may fork between the look and the shot
            if not self._reap():
                return
            self._signal_all(signal.SIGKILL)
            time.sleep(_LOOK_S)

    def _reap(self) -> set[int]:
        self.process.poll()
        return self.members()

    def _signal_all(self, signum: int) -> None:
        for pid in self.members():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signum)


class _Watch:
    """Waits for the child of `family`, passes signals on, and remembers when patience ends."""

    def __init__(self, on_signal: Callable[[int, Family], None] | None, patience_s: float) -> None:
        self.family: Family | None = None
        self._on_signal = on_signal
        self._patience_s = patience_s
        self._early: list[int] = []
        self._stops = 0
        self._deadline: float | None = None

    def adopt(self, family: Family) -> None:
        """From here on signals go to `family`; those that came before are passed on now."""
        self.family = family
        early, self._early = self._early, []
        for signum in early:
            self.handle(signum, None)

    def handle(self, signum: int, _frame: FrameType | None) -> None:
        """Signal handler: pass `signum` on; the third request to stop is the last."""
        if self.family is None:
            self._early.append(signum)
            return
        if signum in STOP_SIGNALS:
            self._stops += 1
            if self._deadline is None:
                self._deadline = time.monotonic() + self._patience_s
            if self._stops > 2:
                self._deadline = time.monotonic()
        if self._on_signal:
            self._on_signal(signum, self.family)
        else:
            self.family.signal_group(signum)

    def wait(self, process: subprocess.Popen[bytes]) -> int:
        """The child's return code. Past the deadline its whole family is killed."""
        while True:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(timeout=_POLL_S)
            if self._deadline is not None and self.family and time.monotonic() >= self._deadline:
                self.family.end(0)


@contextmanager
def handling(handler: Callable[[int, FrameType | None], None], signals: Sequence[int]) -> Iterator[None]:
    """Have `handler` called for `signals` in here, and what handled them before afterwards.

    Python allows handlers in the main thread only; elsewhere signals keep their meaning. A signal that is ignored
    stays so: under `nohup` a hang-up must not stop the run.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heeded = [signum for signum in signals if signal.getsignal(signum) is not signal.SIG_IGN]
    before = {signum: signal.signal(signum, handler) for signum in heeded}
    try:
        yield
    finally:
        for signum, former in before.items():
            signal.signal(signum, signal.SIG_DFL if former is None else former)


def run_foreground(
    argv: Sequence[str],
    env: Mapping[str, str] | None = None,
    *,
    cwd: Path | None = None,
    on_signal: Callable[[int, Family], None] | None = None,
    forward: Sequence[int] = FORWARDED,
    grace_s: float = 30.0,
    patience_s: float = 600.0,
    stdout: Output = None,
    stderr: Output = None,
) -> int:
    """Run `argv` in a session of its own, wait, and leave no descendant behind. Returns its exit code.

    The signals `forward` are passed to the child's process group, or given to `on_signal(signum, family)`
    instead. After a first SIGINT, SIGTERM or SIGHUP the child has `patience_s` seconds (it may be saving a
    checkpoint); the third such signal kills at once. When the child has ended, what is left of its family
    gets SIGTERM and, `grace_s` seconds later, SIGKILL. Should this process be killed outright, the kernel
    sends the child SIGTERM. Death by signal n is 128 + n. Raises OSError when `argv` cannot be started.
    """
    mark = uuid.uuid4().hex
    watch = _Watch(on_signal, patience_s)
    outer = os.environ.get(variables.RUN_ID)  # dsrun under dsrun: both may end what is left
    environ = {**(os.environ if env is None else env), variables.RUN_ID: f"{outer}/{mark}" if outer else mark}
    with handling(watch.handle, forward):
        process = subprocess.Popen(
            _tethered(argv, environ, cwd), env=environ, cwd=cwd, stdout=stdout, stderr=stderr, start_new_session=True
        )
        family = Family(process, mark)
        try:
            watch.adopt(family)
            return exit_of(watch.wait(process))
        finally:
            family.end(grace_s)


def _tethered(argv: Sequence[str], env: Mapping[str, str], cwd: Path | None) -> list[str]:
    """`argv` behind the trampoline. A missing program is found here, where it can still raise."""
    program = argv[0]
    if os.sep in program:
        path = str((cwd or Path()) / program)
        found = path if os.access(path, os.X_OK) else None
    else:
        found = shutil.which(program, path=env.get("PATH"))
    if found is None:
        raise FileNotFoundError(errno.ENOENT, "no such program", program)
    return tethered(argv, os.getpid())


def capture(
    argv: Sequence[str],
    *,
    seconds: float,
    changes: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    feed: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `argv` to its end with `changes` to the environment; its stdin is the file `feed`, or nothing.

    Raises ToolError when it takes longer than `seconds` and MissingError when there is no such program.
    """
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
