"""`python tools/repeat_tests.py N`: `make test` N times, and what failed in which run.

Every second run meets a busy machine: two processes that never rest, and every moment a process of the run, picked at
random, is stopped for up to three seconds. A test that fails here has failed by chance. Exit code 1 for any failure.
"""

from __future__ import annotations

import contextlib
import os
import platform
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import psutil

from dsrun.system.process.process_end import with_pdeathsig

ROOT = Path(__file__).parents[1]
BUSY_PROCESSES = 2
LONGEST_STOP_S = 3.0
PAUSE_S = 0.5
RUN_S = 4 * 3600.0
"""Of one `make test`, which takes minutes."""
ENDING_S = 60.0
# Nothing is tested in these, and make waits for no one.
SPARED = re.compile(r"^(make|sh|bash)$")
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?):?(?: |$)", re.MULTILINE)


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """Both cores of a small machine have something else to do."""
    loop = with_pdeathsig([sys.executable, "-c", "while True: pass"], os.getpid(), signal.SIGKILL)
    others = [subprocess.Popen(loop) for _ in range(BUSY_PROCESSES)]
    try:
        yield
    finally:
        for each in others:
            each.kill()
        for each in others:
            each.wait(ENDING_S)


@contextlib.contextmanager
def stopping(pid: int) -> Iterator[None]:
    """Random descendants of a process are stopped, one at a time."""
    over = threading.Event()
    stopper = threading.Thread(target=_stop_and_go, args=(pid, over))
    stopper.start()
    try:
        yield
    finally:
        over.set()
        stopper.join(ENDING_S)


def _stop_and_go(pid: int, over: threading.Event) -> None:
    while not over.wait(PAUSE_S):
        # Between two commands make has no children, and any process may end at any time.
        with contextlib.suppress(psutil.Error, IndexError):
            victim = random.choice(_victims(pid))
            victim.suspend()
            try:
                over.wait(random.uniform(0.0, LONGEST_STOP_S))
            finally:
                victim.resume()


def _victims(pid: int) -> list[psutil.Process]:
    """What may be stopped. A process that is stopped already is so by its test, and must not be woken up."""
    found = []
    for each in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if each.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE) and not SPARED.search(each.name()):
                found.append(each)
    return found


def run_once(number: int, *, disturbed: bool) -> list[str]:
    """One `make test`; the tests that failed, or what else went wrong. Its output goes into a file."""
    log = ROOT / f".repeat-{number}.log"
    began = time.monotonic()
    with log.open("wb") as output, contextlib.ExitStack() as stack:
        process = subprocess.Popen(
            ["make", "test"], cwd=ROOT, stdout=output, stderr=output, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        stack.callback(_end, process)
        if disturbed:
            stack.enter_context(busy())
            stack.enter_context(stopping(process.pid))
        try:
            code: int | None = process.wait(RUN_S)
        except subprocess.TimeoutExpired:
            code = None
    minutes = (time.monotonic() - began) / 60
    kind = "disturbed" if disturbed else "quiet"
    failed = sorted(set(FAILED.findall(log.read_text(errors="replace")))) if code != 0 else []
    if code == 0:
        log.unlink()
    elif not failed:
        ended = f"did not end within {RUN_S / 3600:g} h" if code is None else f"ended with {code}"
        failed = [f"make test {ended}: {log}"]
    print(
        f"run {number}, {kind}: {minutes:.1f} min, {', '.join(failed) if failed else 'no failure'}",
        flush=True,
    )
    return failed


def _end(process: subprocess.Popen[bytes]) -> None:
    """What pytest leaves is ended by its reaper."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(ENDING_S)


def main(runs: int) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    failed = [run_once(number, disturbed=number % 2 == 0) for number in range(1, runs + 1)]
    bad = sum(1 for each in failed if each)
    print(f"{date.today()}, {platform.node()}: {runs} runs of make test, {bad} with failures")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
