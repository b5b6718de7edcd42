"""Timing whole processes side by side."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median

from bench.processes import COMMAND_S, run

ROUNDS = 12


def children_cpu() -> float:
    """CPU seconds, user and system, of all processes that were started here and have ended."""
    usage = getrusage(RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def interleaved(
    commands: Mapping[str, Sequence[str]],
    rounds: int = ROUNDS,
    *,
    clock: Callable[[], float] = time.perf_counter,
    environ: Mapping[str, str] = os.environ,
) -> dict[str, float]:
    """Median time of each command in seconds of `clock`, over `rounds` runs of all of them in turn: A B C A B C …

    Run in turn, a slow spell of the machine hits all of them alike, and their ratio stays true. One round
    before the first fills the file cache and writes byte code. Raises CalledProcessError when a command
    fails.
    """
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for counted in [False] + [True] * rounds:
        for name, command in commands.items():
            begin = clock()
            run(command, what=name, limit_s=COMMAND_S, capture_output=True, check=True, env=environ)
            if counted:
                seconds[name].append(clock() - begin)
    return {name: median(values) for name, values in seconds.items()}


def ratio_line(times: Mapping[str, float], name: str, against: str) -> str:
    """`NAME takes 1.80 × AGAINST (72 ms against 40 ms)`, or `NAME is 20 × as fast as AGAINST (…)`."""
    one, other = times[name], times[against]
    figures = f"({one * 1000:.0f} ms against {other * 1000:.0f} ms)"
    if one < other:
        return f"{name} is {other / one:.3g} × as fast as {against} {figures}"
    return f"{name} takes {one / other:.3g} × {against} {figures}"
