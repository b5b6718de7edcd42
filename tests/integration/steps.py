"""A training script of somebody else's, without torch: it beats, notes its steps, and misbehaves as it is told.

`steps.py FOLDER STEPS [ATTEMPT:RANK:STEP:WHAT …] [--deaf]`; WHAT is kill, stop, hang, or fail, and ATTEMPT `*` is all
of them. A signal makes it leave, unless it is deaf.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
from pathlib import Path

from dsrun.runs.heartbeat import HeartbeatWriter

told = []


def main() -> None:
    folder, steps = Path(sys.argv[1]), int(sys.argv[2])
    rank, attempt = int(os.environ["RANK"]), int(os.environ["DSRUN_ATTEMPT"])
    faults = [each.split(":") for each in sys.argv[3:] if each.count(":") == 3]
    deaf = "--deaf" in sys.argv
    for signum in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(signum, signal.SIG_IGN if deaf else lambda number, frame: told.append(number))
    heart = HeartbeatWriter.from_environment(os.environ, rank, answers=True)
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    facts = {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "argv": sys.argv[1:],
        "mark": os.environ["DSRUN_RUN_ID"].rpartition("/")[2],
        "scratch": str(Path(os.environ["DSRUN_HEARTBEAT"]).parents[1]),
    }
    note(folder, rank, attempt, "begin", **facts)
    for step in range(1, steps + 1):
        time.sleep(0.02)
        heart.step(step)
        note(folder, rank, attempt, "step", step=step)
        for which, who, when, what in faults:
            if which in (str(attempt), "*") and (int(who), int(when)) == (rank, step):
                misbehave(what)
        if told:
            note(folder, rank, attempt, "told", signal=told[0])
            return
    note(folder, rank, attempt, "end")


def misbehave(what: str) -> None:
    if what == "hang":
        time.sleep(1000)
    if what == "fail":
        raise ValueError("no such thing")
    os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[what])


def note(folder: Path, rank: int, attempt: int, what: str, **more: object) -> None:
    with (folder / f"notes-{rank}.jsonl").open("a") as file:
        file.write(json.dumps({"attempt": attempt, "what": what, "time": time.time(), **more}) + "\n")


if __name__ == "__main__":
    main()
