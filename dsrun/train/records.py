"""What a run writes about itself: run.json, metrics.jsonl, events.jsonl and the checkpoints' manifests. Rank 0 only."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsrun.errors import DsrunError
from dsrun.recipe.flags import SECRETS
from dsrun.runs.folder import RunFolder
from dsrun.runs.manifest import write_manifest
from dsrun.runs.records import Appender, EventLog, utc_now, write_json_atomic
from dsrun.system.host import git_commit, hostname, versions

if TYPE_CHECKING:
    from dsrun.train.plan import Plan


class RunRecords:
    """The ledger of one attempt; on other ranks than 0 every method does nothing."""

    def __init__(self, folder: RunFolder, *, main: bool) -> None:
        self.folder = folder
        self.main = main
        self._facts: dict[str, Any] = {}
        if main:
            self._metrics = Appender(folder.metrics)
            self._events = EventLog(folder.events)

    def start(self, plan: Plan, *, parameters: int, resumed_from: Path | None) -> None:
        """Write run.json and the first event."""
        self._facts = {
            "world_size": plan.world.size,
            "zero_stage": (plan.deepspeed or {}).get("zero_optimization", {}).get("stage", 0),
            "versions": versions(),
        }
        if not self.main:
            return
        self.folder.finished.unlink(missing_ok=True)
        write_json_atomic(self.folder.run_json, _description(plan, parameters) | self._facts)
        self._events.write("start", world_size=plan.world.size)
        if resumed_from:
            self._events.write("resume", path=resumed_from.name, step=_step(resumed_from))

    def metric(self, record: dict[str, Any]) -> None:
        self._metrics.append(record)

    def checkpoint(self, phase: str, folder: Path, seconds: float) -> None:
        """`begin` or `end` of a save; the manifest is written last, and makes the checkpoint complete."""
        if not self.main:
            return
        if phase == "end":
            write_manifest(folder, {"step": _step(folder), **self._facts})
        details = {"path": folder.name, "step": _step(folder)}
        if phase == "begin":
            self._events.write("checkpoint_begin", **details)
        else:
            self._events.write("checkpoint_end", **details, seconds=seconds)

    def failure(self, error: BaseException) -> None:
        if self.main:
            message = str(error) if isinstance(error, DsrunError) else f"{type(error).__name__}: {error}"
            self._events.write("failure", message=message)

    def interrupted(self, step: int) -> None:
        if self.main:
            self._events.write("signal", step=step)

    def end(self, step: int) -> None:
        """The last event, and the file by which a scheduler knows that the job need not run again."""
        if self.main:
            self._events.write("end", step=step)
            write_json_atomic(self.folder.finished, {"version": 1, "time": utc_now(), "step": step})


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.rsplit("-", 1)[-1])


def _description(plan: Plan, parameters: int) -> dict[str, Any]:
    recipe = plan.recipe
    return {
        "version": 1,
        "time": utc_now(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "model": plan.title,
        "model_type": plan.config.model_type,
        "parameters": parameters,
        "task": plan.task,
        "precision": plan.precision,
        "batch": dataclasses.asdict(plan.batch),
        "deepspeed": plan.deepspeed,
        "specs": {"train": _without_secrets(dataclasses.asdict(recipe.spec) | recipe.hf)},
        "sources": recipe.sources,
        "host": hostname(),
        "git_commit": git_commit(Path.cwd()),
    }


def _without_secrets(values: dict[str, Any]) -> dict[str, Any]:
    """Hub tokens must not stand in a file that is passed around."""
    return {name: "(hidden)" if value and name in SECRETS else value for name, value in values.items()}
