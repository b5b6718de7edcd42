"""Looking at processes that come and go while one looks: what has ended in between is left out, never an error."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import psutil

GONE_S = 5
"""Nothing of a run is left so long after its end."""


def noticed_after(failure: dict) -> float:
    """Seconds in which a supervisor noticed a failure of events.jsonl, by its own clock.

    Without those in which it could not look, because this machine was busy or a test had stopped it.
    """
    return failure["seconds"] - failure.get("stalled_s", 0.0)


def alive(process: psutil.Process) -> bool:
    """Whether it still runs; a zombie has ended, and only waits for its parent to take its exit code."""
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def below(pid: int, *words: str) -> list[psutil.Process]:
    """The living descendants of a process whose command lines hold each of these words."""
    found = []
    for each in psutil.Process(pid).children(recursive=True):
        # A process that execs has no command line for a moment, and a zombie never again.
        with suppress(psutil.NoSuchProcess):
            if alive(each) and set(words) <= set(each.cmdline()):
                found.append(each)
    return found


def by_name(pid: int) -> dict[str, psutil.Process]:
    """The living descendants of a process, by what `ps` calls them: dsrun-warm, pt_elastic, rank-0 and so on."""
    found = {}
    for each in below(pid):
        with suppress(psutil.NoSuchProcess):
            found[each.name()] = each
    return found


def wait_for(condition: Callable[[], object], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.1)


def left_of(processes: list[psutil.Process], seconds: float = 60) -> list[psutil.Process]:
    """Those that still run after that time, and are ended now. The kernel may take its time to end them."""
    deadline = time.monotonic() + seconds
    while (left := [each for each in processes if alive(each)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    for each in left:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    return left


def of_run(folder: object) -> dict[str, psutil.Process]:
    """What the supervisor of a run folder has started and still lives, by what `ps` calls it, whoever its parent is."""
    found = {}
    for each in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if alive(each) and each.environ().get("DSRUN_OUTPUT") == str(folder):
                found[each.name()] = each
    return found
