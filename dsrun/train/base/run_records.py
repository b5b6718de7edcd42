"""What a run writes about itself: run.json, metrics.jsonl, events.jsonl and FINISHED."""

import dataclasses
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dsrun.datafiles import SubjectNames, evaluate, toml_beside
from dsrun.errors import DsrunError
from dsrun.recipe.resolved import without_secrets
from dsrun.runs.attempts import attempt, start_times
from dsrun.runs.folder import RunFolder
from dsrun.runs.goodput import goodput, goodput_line
from dsrun.runs.heartbeat import StopRequest
from dsrun.runs.records import EventLog, LineAppender, read_records, utc_now, write_json_atomic
from dsrun.runs.tail import last_record
from dsrun.system.host import git_commit, hostname, versions
from dsrun.system.terminal.secrets import masked, masked_values
from dsrun.train.base import speed
from dsrun.train.base.console import Console
from dsrun.train.base.plan import TrainingPlan


class RunRecords:
    """The ledger of one attempt; on other ranks than 0 every method does nothing."""

    def __init__(self, folder: RunFolder, *, main: bool) -> None:
        self.folder = folder
        self.main = main
        self._began = time.monotonic()
        if main:
            self._metrics = LineAppender(folder.metrics)
            self._events = EventLog(folder.events)

    def start(self, plan: TrainingPlan, *, resumed_from: Path | None, **facts: Any) -> None:
        """`facts` are those for run.json that do not follow from the plan."""
        if not self.main:
            return
        self.folder.finished.unlink(missing_ok=True)
        write_json_atomic(self.folder.run_json, _description(plan) | facts)
        counts = attempt(os.environ)
        last = last_record(self.folder.events)
        # The supervisor of a script of one's own has written it, before the script was known to train with dsrun.
        if last.get("kind") != "start" or last.get("attempt") != counts["attempt"]:
            self._events.write("start", world_size=plan.world.size, **counts, **start_times(os.environ))
        if resumed_from:
            self._events.write("resume", path=resumed_from.name, step=step_of(resumed_from), **counts)

    def metric(self, record: dict[str, Any]) -> None:
        self._metrics.append(record)

    def event(self, kind: str, **details: Any) -> None:
        if self.main:
            self._events.write(kind, **details)

    def checkpoint(self, phase: str, folder: Path, seconds: float, details: dict[str, Any]) -> None:
        """A save begins, is complete and visible, or has failed; `seconds` is how long training waited for it."""
        where = {"path": folder.name, "step": step_of(folder)}
        if phase == "begin":
            self.event("checkpoint_begin", **where)
        elif phase == "visible":
            self.event("checkpoint_end", **where, seconds=seconds, **details)
        elif phase == "failed":
            self.event("checkpoint_failed", **where, **details)

    def failure(self, error: BaseException, *, step: int | None, cause: str | None) -> None:
        """Where no supervisor does, which knows which rank failed first."""
        message = str(error) if isinstance(error, DsrunError) else f"{type(error).__name__}: {error}"
        self.event("failure", message=message, step=step, cause=cause or "unknown")

    def interrupted(self, step: int, request: StopRequest) -> None:
        where = {"rank": request.rank, "signalled_host": request.host, "signalled_at": request.time}
        self.event("signal", step=step, signal=request.signal, **where)

    def end(self, step: int) -> None:
        """The last event, and the file by which a scheduler knows that the job need not run again."""
        if self.main:
            self._events.write("end", step=step, seconds=time.monotonic() - self._began, exit_code=0)
            write_json_atomic(self.folder.finished, {"version": 1, "time": utc_now(), "step": step})

    def goodput(self) -> str | None:
        return goodput_line(goodput(self.history())) if self.main else None

    def history(self) -> list[dict[str, Any]]:
        """All events of the folder so far, those of earlier attempts included; none on other ranks."""
        return read_records(self.folder.events) if self.main else []


def step_of(checkpoint: Path) -> int:
    """The optimizer steps behind a checkpoint, whose folder may have been renamed."""
    number = checkpoint.name.rpartition("-")[2]
    if number.isdecimal():
        return int(number)
    return int(json.loads((checkpoint / "trainer_state.json").read_text())["global_step"])


def _description(plan: TrainingPlan) -> dict[str, Any]:
    recipe = plan.recipe
    known = {
        "now": utc_now(),
        "command": masked(plan.given.command or ["dsrun", "train", *without_secrets(recipe).argv]),
        "settings": dataclasses.asdict(recipe.spec) | recipe.hf,
        "masked_values": masked_values,
        "as_dict": dataclasses.asdict,
        "host": hostname(),
        "commit": git_commit(Path.cwd()),
        "chosen": {"mode": recipe.spec.speed, "choices": speed.choices(speed.facts_of(plan))},
        "versions": versions(),
    }
    names = SubjectNames(plan, {}, **known)
    return {name: evaluate(expression, names) for name, expression in toml_beside(__file__)["run"].items()}


def event_reporter(records: RunRecords, console: Console, kind: str, what: str = "") -> Callable[[int, str], None]:
    """Writes an event (step, message) and prints it."""

    def report(step: int, message: str) -> None:
        records.event(kind, step=step, message=message)
        console.print(f"note: step {step}{what}: {message}", style="yellow")

    return report
