"""All processes that benchmarks start. Each has a time limit, after which it is ended with its whole family, and the
benchmark with one line: what ran, for how long, and the locks that lie where torch compiles.

torch waits for such a lock for ever and without a word (dsrun/system/build_locks.py).
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NoReturn

import psutil

from dsrun.system.build_locks import locks_in_time, remove_abandoned
from dsrun.system.terminal.display import duration

COMMAND_S = 300.0
"""Of a command that takes seconds, on a busy machine."""
HOUR_S = 3600.0
GRACE_S = 30.0
"""torchrun and dsrun end their ranks after SIGTERM."""
KILLED_S = 20.0
MARK = "DSRUN_BENCH_PROCESS"
"""The environment variable by which all that a process has started is found, in whatever session."""
_POLL_S = 0.05
_NUMBERS = itertools.count(1)


class LimitedProcess:
    """A process that is looked after: `kinds` are Popen's, with nothing as stdin unless given. At the end of a `with`
    it is ended with its family.

    `limit_s` counts from the start, or from the last `renew`. `compiles`: it may compile operations, so the locks that
    nobody holds are removed first, each with a line.
    """

    def __init__(
        self,
        argv: Sequence[str | Path],
        *,
        what: str,
        limit_s: float,
        env: Mapping[str, str] | None = None,
        compiles: bool = False,
        **kinds: Any,
    ) -> None:
        self.what, self.limit_s = what, limit_s
        self.env = dict(os.environ if env is None else env)
        # Of a benchmark within a benchmark, both find it.
        self.env[MARK] = self._mark = f"{os.environ.get(MARK, '')}/{os.getpid()}-{next(_NUMBERS)}"
        if compiles:
            remove_abandoned(self.env, lambda line: print(line, flush=True), set())
        outputs = (kinds.get("stderr"), kinds.get("stdout"))
        self._log = next((each.name for each in outputs if hasattr(each, "name")), "")
        self._has_session = bool(kinds.get("start_new_session"))
        self.began = self._renewed = time.monotonic()
        self.process: subprocess.Popen[Any] = subprocess.Popen(
            argv, env=self.env, **{"stdin": subprocess.DEVNULL, **kinds}
        )

    def __enter__(self) -> LimitedProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def returncode(self) -> int | None:
        """After `poll`, `finish` or `end`."""
        return self.process.returncode

    def poll(self) -> int | None:
        return self.process.poll()

    @property
    def left_s(self) -> float:
        return max(0.0, self._renewed + self.limit_s - time.monotonic())

    def renew(self) -> None:
        """It has got on: the limit counts from now."""
        self._renewed = time.monotonic()

    def check(self) -> None:
        """For loops: end the benchmark if the limit is over."""
        if not self.left_s:
            self.overdue()

    def ends(self) -> bool:
        """Wait for its end; False when the limit came first, for a benchmark that goes on without it."""
        try:
            self.process.wait(self.left_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def finish(self) -> tuple[Any, Any]:
        """Wait for its end; what it wrote to the pipes stdout and stderr."""
        try:
            return self.process.communicate(timeout=self.left_s)
        except subprocess.TimeoutExpired:
            self.overdue()

    def write(self, text: str) -> None:
        """To its stdin, a pipe."""
        assert self.process.stdin is not None
        self.process.stdin.write(text)
        self.process.stdin.flush()

    def line(self, name: str) -> str:
        """The next line that it writes to its pipe of this name, stdout or stderr; "" when it has ended."""
        pipe, found = getattr(self.process, name), queue.Queue[str]()
        threading.Thread(target=lambda: found.put(next(pipe, "")), daemon=True).start()
        try:
            return found.get(timeout=self.left_s)
        except queue.Empty:
            self.overdue()

    def overdue(self) -> NoReturn:
        """End the benchmark, as this has taken too long."""
        ran = time.monotonic() - self.began
        locks = locks_of(self.env)
        self.end()
        _exit(self.what, ran, self.limit_s, (f"; see {self._log}" if self._log else "") + locks)

    def end(self, grace_s: float = GRACE_S) -> None:
        """SIGTERM to it, and to its process group if that is its own; SIGKILL to all that is left of its family when
        these have ended, or after `grace_s`. With 0 seconds, SIGKILL at once."""
        family = self._family()
        if grace_s:
            self._terminate(family, time.monotonic() + grace_s)
        self.process.kill()
        for each in family | self._family():
            with suppress(psutil.Error):
                each.kill()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(KILLED_S)

    def _terminate(self, family: set[psutil.Process], deadline: float) -> None:
        group = {each for each in family if each.pid != self.pid and self._has_session and _group(each) == self.pid}
        with suppress(ProcessLookupError):
            if self._has_session:
                os.killpg(self.pid, signal.SIGTERM)
            else:
                self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(deadline - time.monotonic())
        while any(map(_lives, group)) and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def _family(self) -> set[psutil.Process]:
        """Its descendants, and all that have its mark: they may have a new parent, or an environment written over."""
        found: set[psutil.Process] = set()
        with suppress(psutil.Error):
            found |= set(psutil.Process(self.pid).children(recursive=True)) if self.poll() is None else set()
        for each in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if f"{each.environ().get(MARK, '')}/".startswith(f"{self._mark}/"):
                    found.add(each)
        return found


def run(
    argv: Sequence[str | Path], *, what: str, limit_s: float, check: bool = False, **kinds: Any
) -> subprocess.CompletedProcess[Any]:
    """As subprocess.run, with a limit. `kinds` are LimitedProcess's, and `capture_output`."""
    if kinds.pop("capture_output", False):
        kinds |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    started = LimitedProcess(argv, what=what, limit_s=limit_s, **kinds)
    try:
        out, err = started.finish()
    finally:
        # Nothing more is done to one that has ended: this time is measured, too.
        if started.returncode is None:
            started.end()
    done = subprocess.CompletedProcess(argv, started.process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def forked(work: Callable[..., None], *args: object, what: str, limit_s: float, size: int) -> list[float]:
    """The `size` numbers that `work(*args, numbers)` puts into `numbers`, in a fork of this process."""
    fork = multiprocessing.get_context("fork")
    numbers = fork.RawArray("d", size)
    process = fork.Process(target=work, args=(*args, numbers))
    began = time.monotonic()
    process.start()
    try:
        process.join(limit_s)
        if process.exitcode is None:
            _exit(what, time.monotonic() - began, limit_s, locks_of(os.environ))
    finally:
        process.kill()
        process.join(KILLED_S)
    if process.exitcode:
        sys.exit(f"error: {what} failed with exit code {process.exitcode}")
    return list(numbers)


def first_text(work: Callable[..., str], calls: Sequence[tuple[object, ...]], *, limit_s: float) -> str:
    """Of forks of this process, one for each call and all at a time, the first text that is not empty of those that
    `work(*call)` returns, or how a fork ended that returned none; empty where none has any."""
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="dsrun-bench-") as folder:
        forks = {}
        for number, call in enumerate(calls):
            answer = Path(folder, str(number))
            process = fork.Process(target=_answer, args=(answer, work, call), daemon=True)
            process.start()
            forks[process.sentinel] = (process, answer)
        left, ends = set(forks), time.monotonic() + limit_s
        try:
            while left and (ended := wait(left, max(0.0, ends - time.monotonic()))):
                left.difference_update(ended)
                if text := next(filter(None, (_text_of(*forks[each]) for each in ended)), ""):
                    return text
            return f"did not end in {limit_s:g} s" if left else ""
        finally:
            for process, _ in forks.values():
                process.kill()
                process.join(KILLED_S)


def _answer(answer: Path, work: Callable[..., str], call: tuple[object, ...]) -> None:
    """Without what this process would do at its end."""
    try:
        answer.write_text(work(*call))
    finally:
        os._exit(0 if answer.exists() else 1)


def _text_of(process: Any, answer: Path) -> str:
    process.join(KILLED_S)
    return answer.read_text() if answer.exists() else f"died with exit code {process.exitcode}"


def _group(process: psutil.Process) -> int | None:
    with suppress(OSError):
        return os.getpgid(process.pid)
    return None


def _lives(process: psutil.Process) -> bool:
    """A zombie does not, whoever should wait for it."""
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def locks_of(env: Mapping[str, str]) -> str:
    """For the end of a line: the locks in the folder that torch compiles into; "" if there are none."""
    found = locks_in_time(env)
    if not found:
        return ""
    return f"; torch's builds wait for {', '.join(map(str, found))} (remove what no build holds)"


def _exit(what: str, ran_s: float, limit_s: float, more: str) -> NoReturn:
    sys.exit(f"error: {what} ran for {duration(ran_s)} and is ended, its limit of {duration(limit_s)} being over{more}")
