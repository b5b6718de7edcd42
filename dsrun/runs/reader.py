"""A run folder as it is read, once or again and again: only what was added since, of long files only what is shown."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dsrun.errors import UsageError
from dsrun.runs.folder import RunFolder, refuse_without_run
from dsrun.runs.node_status import NodeStatus, read_node_status
from dsrun.runs.records import LedgerRecord, finite, mapping, records_in, revive, seconds_of, whole
from dsrun.runs.tail import LineTail
from dsrun.system.files import read_object

DEFAULT = "default"
"""The source of a setting that nobody gave."""
WHOLE = 4 << 20
"""Files up to so many bytes, some 15,000 steps, are read whole."""
TAIL = 256 << 10
NEWEST = 32 << 10
"""The end of a file in which there are as many steps as tell how fast a run is."""
SAMPLES = 500
"""Of what lies before the TAIL of a longer file, so many lines are read: enough for a curve on any terminal."""
MOST_STEPS = 4000
"""So many steps are held; beyond twice as many, every second one of the older half is let go."""
# As json.dumps writes it; a run writes one a minute, and only the last of several in a row tells anything.
_PROGRESS = b'"kind": "progress"'
Extent = Literal["all", "view", "newest", "events"]
# Figures of an evaluation itself, not of the model.
_COSTS = ("_seconds", "_runtime", "_per_second", "_samples", "_steps", "_epoch")


@dataclass(frozen=True, kw_only=True)
class RunHistory:
    """Everything that a run folder tells.

    `steps` are the records of metrics.jsonl with a loss, in the order of their steps: where a restarted run made steps
    again, those of the later attempt. `evaluations` are its other records, the same way. `run` is run.json, {} before
    it is written; until then `recipe` is recipe.json."""

    path: Path
    run: LedgerRecord = field(default_factory=dict)
    recipe: LedgerRecord = field(default_factory=dict)
    steps: tuple[LedgerRecord, ...] = ()
    evaluations: tuple[LedgerRecord, ...] = ()
    events: tuple[LedgerRecord, ...] = ()
    nodes: tuple[NodeStatus, ...] = ()

    @property
    def settings(self) -> LedgerRecord:
        """The resolved settings of training, by name."""
        return mapping(mapping(self.run.get("specs")).get("train")) or mapping(self.recipe.get("values"))

    @property
    def sources(self) -> LedgerRecord:
        """Where each setting comes from: the command line, a file, or DEFAULT; what is not named is a default, too."""
        return mapping(self.run.get("sources")) or mapping(self.recipe.get("sources"))

    @property
    def max_steps(self) -> int | None:
        """How many optimizer steps the run is to make."""
        return next((number for each in reversed(self.events) if (number := whole(each.get("max_steps")))), None)

    @property
    def program(self) -> str | None:
        """The program that a dsrun launch runs here, where that is not dsrun's own training."""
        start = next((each for each in reversed(self.events) if each.get("kind") == "start"), {})
        name = start.get("program")
        return name if isinstance(name, str) else None

    @property
    def tells_of_training(self) -> bool:
        """Whether its events tell what its time went into: of another program, only once its output shows steps."""
        return bool(self.events) and (not self.program or any(each.get("kind") == "training" for each in self.events))

    @property
    def present_nodes(self) -> tuple[NodeStatus, ...]:
        """The nodes of this start: one that was started again under torchrun leaves the status of its former ones."""
        starts = (each for each in reversed(self.events) if each.get("kind") == "start" and not each.get("attempt"))
        began = seconds_of(next(starts, {})) or 0.0
        return tuple(node for node in self.nodes if (seconds_of({"time": node.time}) or began) >= began)

    def series(self, key: str) -> list[tuple[int, float]]:
        """(step, value) of a key of `steps` or `evaluations`, values that are not finite left out."""
        return series((*self.steps, *self.evaluations) if key.startswith("eval") else self.steps, key)


def metric_keys(records: Iterable[LedgerRecord]) -> list[str]:
    """The keys of the metrics in evaluations, without what these cost."""
    keys = {str(key): None for record in records for key in record if str(key).startswith("eval_")}
    return [key for key in keys if not key.endswith(_COSTS)]


def series(records: Iterable[LedgerRecord], key: str) -> list[tuple[int, float]]:
    """(step, value) of those records that have a finite `key`."""
    found = ((whole(each.get("step")), finite(each.get(key))) for each in records)
    return [(step, value) for step, value in found if step is not None and value is not None]


class UnreadableRun(UsageError):
    """A file of a run folder is there, and cannot be read."""


class RunReader:
    """The history of the run in a folder, as it grows.

    How much of it: "all"; a "view", for which a sample of the older steps of a long metrics.jsonl stands for all of
    them, its evaluations are taken from events.jsonl, and of progress events that follow each other the last is kept;
    that with only the "newest" steps, enough for a RunStatus; or with none, "events", for which metrics.jsonl is not
    opened."""

    def __init__(self, path: Path, extent: Extent = "view") -> None:
        self.path = path
        self._folder = RunFolder(path)
        self._extent = extent
        self._begin_metrics()
        self._begin_events()
        self._run: LedgerRecord = {}
        self._run_written = 0

    def _begin_metrics(self) -> None:
        limits: Mapping[Extent, Mapping[str, int]] = {
            "all": {},
            "view": {"whole": WHOLE, "tail": TAIL, "samples": SAMPLES},
            "newest": {"whole": NEWEST, "tail": NEWEST},
            "events": {},
        }
        self._metrics = LineTail(self._folder.metrics, **limits[self._extent])
        self._kept = _KeptRecords()

    def _begin_events(self) -> None:
        self._events = LineTail(self._folder.events)
        self._happened: list[LedgerRecord] = []

    def read(self) -> RunHistory:
        """The history up to now. Raises UsageError where the folder is not that of a run, UnreadableRun where a file
        of it cannot be read."""
        try:
            return self._history()
        except OSError as error:
            fix = "ask its owner for it" if isinstance(error, PermissionError) else "move it aside, or repair it"
            reason = (error.strerror or str(error)).lower()
            raise UnreadableRun(f"{error.filename or self.path}: {reason}", fix=fix) from error

    def _history(self) -> RunHistory:
        self._read_events()
        self._read_run_json()
        if not self._run and not self._happened:
            refuse_without_run(self.path)
        if self._extent != "events":
            self._read_metrics()
        return RunHistory(
            path=self.path,
            run=self._run,
            recipe={} if self._run else read_object(self._folder.recipe),
            steps=tuple(self._kept.steps),
            evaluations=tuple(self._kept.evaluations) or _evaluations(self._happened),
            events=tuple(self._happened),
            nodes=read_node_status(self.path),
        )

    def _read_events(self) -> None:
        try:
            lines, is_new = self._events.read()
        except (FileNotFoundError, NotADirectoryError):
            return self._begin_events()
        if is_new:
            self._happened = []
        if self._extent == "all":
            self._happened += records_in(lines)
            return None
        for event in records_in(_without_repeated_progress(lines)):
            if self._happened and event.get("kind") == self._happened[-1].get("kind") == "progress":
                self._happened.pop()
            self._happened.append(event)
        return None

    def _read_metrics(self) -> None:
        try:
            lines, is_new = self._metrics.read()
        except (FileNotFoundError, NotADirectoryError):
            return self._begin_metrics()
        if is_new:
            self._kept = _KeptRecords()
        for record in records_in(lines):
            self._kept.add(revive(record))
        steps = self._kept.steps
        if len(steps) > 2 * MOST_STEPS and self._extent != "all":
            self._kept.steps = steps[:MOST_STEPS:2] + steps[MOST_STEPS:]
        return None

    def _read_run_json(self) -> None:
        written = 0
        with suppress(OSError):
            written = self._folder.run_json.stat().st_mtime_ns
        if written != self._run_written:
            self._run_written = written
            self._run = read_object(self._folder.run_json)


class _KeptRecords:
    """The steps and the evaluations without those that a restarted run made again, or never came back to."""

    def __init__(self) -> None:
        self.steps: list[LedgerRecord] = []
        self.evaluations: list[LedgerRecord] = []

    def add(self, record: LedgerRecord) -> None:
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


def _drop(records: list[LedgerRecord], *, from_step: int) -> None:
    while records and records[-1]["step"] >= from_step:
        records.pop()


def _without_repeated_progress(lines: list[bytes]) -> Iterator[bytes]:
    """The lines without those progress events that another one follows."""
    for place, line in enumerate(lines):
        if _PROGRESS in line and place + 1 < len(lines) and _PROGRESS in lines[place + 1]:
            continue
        yield line


def _evaluations(events: list[LedgerRecord]) -> tuple[LedgerRecord, ...]:
    """The evaluations that the events tell of."""
    kept = _KeptRecords()
    for event in events:
        metrics = event.get("metrics")
        if event.get("kind") == "evaluate" and isinstance(metrics, dict):
            kept.add({**metrics, "step": event.get("step"), "time": event.get("time")})
    return tuple(kept.evaluations)


def read_history(path: Path, extent: Extent = "all") -> RunHistory:
    """The history of the run in folder `path`. Raises UsageError where it is not a run folder, or cannot be read."""
    return RunReader(path, extent).read()
