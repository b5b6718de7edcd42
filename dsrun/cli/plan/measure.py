"""`dsrun plan --measure 60s -- train …`: the steps of a training that is begun here, and ended after that time."""

import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from dsrun.cli.output import refusal
from dsrun.monitoring.quote import CPU, MeasuredRun, measured
from dsrun.runs.folder import RunFolder
from dsrun.runs.records import read_records
from dsrun.system.host import require_training_packages
from dsrun.system.process.proc import run_foreground
from dsrun.system.process.scratch import scratch_folder
from dsrun.system.terminal.stderr import print_note

START_S = 3600.0
"""Until the first step: data are prepared, and a large model is loaded."""
_SECONDS = {"s": 1, "m": 60, "h": 3600}
# After the user's own. Each step is logged; nothing is saved, as SIGINT ends without; no tracker hears of it.
_FLAGS = ("--logging-strategy", "steps", "--logging-steps", "1", "--save-every", str(10**9), "--max-restarts", "0",
          "--report-to", "none", "--wandb-project", "", "--push-to-hub", "false")  # fmt: skip


def seconds_of(text: str) -> float:
    """A time as 60s, 5m or 1h. Raises UsageError for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip())
    if not found or not float(found[1]):
        raise refusal("plan.measure", text=text)
    return float(found[1]) * _SECONDS[found[2]]


def measure(text: str, flags: Sequence[str]) -> MeasuredRun | int:
    """Train with `flags` on this machine until steps have been logged for the time `text`, or it ends by itself.

    Returns the exit code of a training that failed, which has said why. Raises UsageError for what is no time,
    ToolError where it has not logged two steps."""
    seconds = seconds_of(text)
    require_training_packages()
    with scratch_folder("dsrun-measure-") as scratch:
        run = RunFolder(scratch / "run")
        argv = [sys.executable, "-m", "dsrun", "train", *flags, *_FLAGS, "--output", str(run.path)]
        stop = _logged_for(seconds, run.metrics)
        limit, talk = START_S + seconds, sys.stderr.fileno()
        code = run_foreground(argv, output=talk, limit_s=limit, stop=signal.SIGINT, until=stop)
        if 0 < code < 128 and not stop():
            return code
        if len(_steps(run.metrics)) < 2:
            raise refusal("plan.steps")
        found = measured(run.path)
    device = "the CPU" if found.kind == CPU else "the GPUs here"
    print_note(f"these are steps of {device}, on this machine alone; saves come on top")
    return found


def _logged_for(seconds: float, metrics: Path) -> Callable[[], bool]:
    """Whether two steps have been logged, the first of them so many seconds ago. The file is read only where that can
    have changed."""
    began: list[float] = []

    def is_over() -> bool:
        if began and time.monotonic() < began[0] + seconds:
            return False
        count = len(_steps(metrics))
        if count and not began:
            began.append(time.monotonic())
        return count > 1 and time.monotonic() >= began[0] + seconds

    return is_over


def _steps(metrics: Path) -> list[object]:
    return [row for row in read_records(metrics) if "loss" in row and "tokens" in row]
