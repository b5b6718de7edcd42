"""The history of a run from its folder: the steps it kept, evaluations, events and settings. Reads files only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from dsrun.diagnosis.run import is_run
from dsrun.errors import UsageError
from dsrun.runs.folder import RunFolder
from dsrun.runs.node_status import NodeStatus, read_node_status
from dsrun.runs.records import iter_records, read_records, revive
from dsrun.runs.values import Record, finite, mapping, seconds_of, whole
from dsrun.system.files import parse_json

DEFAULT = "default"
"""The source of a setting that nobody gave."""
# Figures of an evaluation itself, not of the model.
_COSTS = ("_seconds", "_runtime", "_per_second", "_samples", "_steps", "_epoch")


@dataclass(frozen=True, kw_only=True)
class RunHistory:
    """Everything that a run folder tells.

    `steps` are the records of metrics.jsonl with a loss, in the order of their steps: where a restarted run made steps
    again, those of the later attempt. `evaluations` are its other records, the same way. `run` is run.json, {} before
    it is written; until then `recipe` is recipe.json.
    """

    path: Path
    run: Record = field(default_factory=dict)
    recipe: Record = field(default_factory=dict)
    steps: tuple[Record, ...] = ()
    evaluations: tuple[Record, ...] = ()
    events: tuple[Record, ...] = ()
    nodes: tuple[NodeStatus, ...] = ()

    @property
    def settings(self) -> Record:
        """The resolved settings of training, by name."""
        return mapping(mapping(self.run.get("specs")).get("train")) or mapping(self.recipe.get("values"))

    @property
    def sources(self) -> Record:
        """Where each setting comes from: the command line, a file, or DEFAULT; what is not named is a default, too."""
        return mapping(self.run.get("sources")) or mapping(self.recipe.get("sources"))

    @property
    def max_steps(self) -> int | None:
        """How many optimizer steps the run is to make."""
        return next((number for each in reversed(self.events) if (number := whole(each.get("max_steps")))), None)

    @property
    def present_nodes(self) -> tuple[NodeStatus, ...]:
        """The nodes of this start: one that was started again under torchrun leaves the status of its former ones."""
        starts = (each for each in reversed(self.events) if each.get("kind") == "start" and not each.get("attempt"))
        began = seconds_of(next(starts, {})) or 0.0
        return tuple(node for node in self.nodes if (seconds_of({"time": node.time}) or began) >= began)

    def series(self, key: str) -> list[tuple[int, float]]:
        """(step, value) of a key of `steps` or `evaluations`, values that are not finite left out."""
        return series((*self.steps, *self.evaluations) if key.startswith("eval") else self.steps, key)


def read_history(path: Path) -> RunHistory:
    """The history of the run in folder `path`. Raises UsageError where it is not a run folder."""
    folder = RunFolder(path)
    events = tuple(read_records(folder.events)) if path.is_dir() else ()
    run = read_object(folder.run_json)
    if not run and not events:
        refuse_without_run(path)
    kept = KeptRecords()
    for record in iter_records(folder.metrics):
        kept.add(revive(record))
    return RunHistory(
        path=path,
        run=run,
        recipe={} if run else read_object(folder.recipe),
        steps=tuple(kept.steps),
        evaluations=tuple(kept.evaluations),
        events=events,
        nodes=read_node_status(path),
    )


def refuse_without_run(path: Path) -> None:
    """Raise UsageError unless a run has at least begun to start in `path`."""
    if not is_run(path):
        what = "contains no run" if path.is_dir() else "is not a folder" if path.exists() else "does not exist"
        raise UsageError(f"{path} {what}", fix="give the --output of a dsrun train or launch")


def metric_keys(records: Iterable[Record]) -> list[str]:
    """The keys of the metrics in evaluations, without what these cost."""
    keys = {str(key): None for record in records for key in record if str(key).startswith("eval_")}
    return [key for key in keys if not key.endswith(_COSTS)]


def series(records: Iterable[Record], key: str) -> list[tuple[int, float]]:
    """(step, value) of those records that have a finite `key`."""
    found = ((whole(each.get("step")), finite(each.get(key))) for each in records)
    return [(step, value) for step, value in found if step is not None and value is not None]


class KeptRecords:
    """The steps and the evaluations without those that a restarted run made again, or never came back to."""

    def __init__(self) -> None:
        self.steps: list[Record] = []
        self.evaluations: list[Record] = []

    def add(self, record: Record) -> None:
        """Take the next line of metrics.jsonl in."""
        step = whole(record.get("step"))
        if step is None:
            return
        if "loss" in record:
            _drop(self.steps, from_step=step)
            # An evaluation of the same step comes after its line, so one that is there is of an attempt before.
            _drop(self.evaluations, from_step=step)
            self.steps.append(record)
        else:
            _drop(self.evaluations, from_step=step + 1)
            self.evaluations.append(record)


def _drop(records: list[Record], *, from_step: int) -> None:
    while records and records[-1]["step"] >= from_step:
        records.pop()


def read_object(path: Path) -> Record:
    """The JSON object in `path`; {} where there is none that can be read."""
    try:
        found = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return mapping(found)
