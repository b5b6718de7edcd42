"""Run folders as Prometheus metrics: over HTTP, or as a file for node_exporter's textfile collector.

Folders are read when they are scraped. The number of time series is bounded: by `MOST_RUNS` runs, and for each by
`MOST_RANKS` ranks, of which the most silent and the slowest are kept, and `MOST_METRICS` metrics of evaluations."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from dsrun.datafiles import toml_beside
from dsrun.errors import UsageError
from dsrun.monitoring.observations import throttle_reasons
from dsrun.monitoring.run_status import RunState, status_of
from dsrun.runs.folder import changed, is_run, runs_below
from dsrun.runs.goodput import goodput
from dsrun.runs.node_status import NodeStatus
from dsrun.runs.reader import RunHistory, RunReader, UnreadableRun
from dsrun.runs.records import finite, seconds_of, whole
from dsrun.system.terminal.stderr import print_note

if TYPE_CHECKING:
    from prometheus_client.core import Metric

MOST_RUNS = 100
MOST_RANKS = 64
MOST_METRICS = 30
ENDED_S = 24 * 3600.0
"""So long after its end a run is still exported."""

MetricLabels = dict[str, str]
MetricSample = tuple[str, MetricLabels, float]
"""(name of the metric, labels without `run`, value)"""


@cache
def metrics() -> Mapping[str, Mapping[str, Any]]:
    """Every metric by name: `help`, `type` (a gauge, if there is none) and `labels`."""
    return toml_beside(__file__, "metrics.toml")


def samples(history: RunHistory, now: float) -> Iterator[MetricSample]:
    """The metrics of one run at `now`, in seconds since the epoch; what is not known is left out."""
    status = status_of(history, now)
    versions = history.run.get("versions")
    version = str(versions.get("dsrun", "")) if isinstance(versions, Mapping) else ""
    yield "dsrun_run_info", {"model": status.model or "", "host": status.host or "", "dsrun_version": version}, 1.0
    for state in get_args(RunState):
        yield "dsrun_run_state", {"state": state}, float(state == status.state)
    yield from _fields("status", status, {})
    yield from _times_and_counts(history)
    for metric, value in _evaluation(history).items():
        yield "dsrun_evaluation", {"metric": metric}, value
    for use, seconds in (status.time or goodput(())).as_dict().items():
        if use not in ("total", "goodput"):
            yield "dsrun_time_seconds_total", {"use": use}, seconds
    causes = Counter(str(each.get("cause") or "unknown") for each in history.events if each.get("kind") == "failure")
    for cause, count in causes.items():
        yield "dsrun_failures_total", {"cause": cause}, float(count)
    if not status.is_over:
        yield from _ranks(history.nodes)
        for node in history.nodes:
            yield from _node(node)


@cache
def _sources(kind: str) -> Mapping[str, tuple[str, float]]:
    """What metrics.toml takes from a status, a node, a rank, a GPU, or events: the field by metric, and its scale."""
    return {name: (row[kind], row.get("scale", 1.0)) for name, row in metrics().items() if kind in row}


def _fields(kind: str, source: object, labels: MetricLabels) -> Iterator[MetricSample]:
    """The metrics that are fields of `source`; what is not known is left out."""
    for name, (field, scale) in _sources(kind).items():
        if (value := getattr(source, field)) is not None:
            yield name, labels, float(value) * scale


def _times_and_counts(history: RunHistory) -> Iterator[MetricSample]:
    kinds = Counter(str(each.get("kind")) for each in history.events)
    saved = next((each for each in reversed(history.events) if each.get("kind") == "checkpoint_end"), {})
    # A start after a good end is a new one.
    marks = [
        each["kind"]
        for each in history.events
        if each.get("kind") == "start" or (each.get("kind") == "end" and not each.get("exit_code"))
    ]
    found: dict[str, float | None] = {name: kinds[kind] for name, (kind, _) in _sources("event").items()}
    found |= {
        "dsrun_restarts_total": sum(one == other == "start" for one, other in pairwise(marks)),
        "dsrun_start_timestamp_seconds": next((at for each in history.events if (at := seconds_of(each))), None),
        "dsrun_last_step_timestamp_seconds": seconds_of(history.steps[-1]) if history.steps else None,
        "dsrun_last_checkpoint_timestamp_seconds": seconds_of(saved),
        "dsrun_checkpoint_bytes": whole(saved.get("bytes")),
    }
    yield from ((name, {}, float(value)) for name, value in found.items() if value is not None)


def _evaluation(history: RunHistory) -> dict[str, float]:
    """The last value of each metric of the evaluations, by its name without eval_."""
    found: dict[str, float] = {}
    for record in history.evaluations:
        for name, value in record.items():
            if name.startswith("eval_") and (number := finite(value)) is not None:
                found[name.removeprefix("eval_")] = number
    return dict(list(found.items())[:MOST_METRICS])


def _ranks(nodes: Sequence[NodeStatus]) -> Iterator[MetricSample]:
    """Of many the silent ones, then those that wait least for the others."""
    known = [(node.host, rank) for node in nodes for rank in node.ranks]
    known.sort(key=lambda each: (each[1].silent_s, (each[1].step_s or 0.0) - (each[1].wait_s or 0.0)), reverse=True)
    for host, rank in known[:MOST_RANKS]:
        yield from _fields("rank", rank, {"rank": str(rank.rank), "host": host})


def _node(node: NodeStatus) -> Iterator[MetricSample]:
    yield from _fields("node", node, {"host": node.host})
    for gpu in node.gpus:
        labels = {"host": node.host, "gpu": str(gpu.index)}
        yield from _fields("gpu", gpu, labels)
        yield "dsrun_gpu_throttled", labels, float(bool(throttle_reasons(gpu)))


def find_runs(folders: Sequence[Path]) -> dict[str, Path]:
    """The run folders in `folders`, each a run or a folder of runs, by the value of their label `run`: the folder's
    name, or its path where several have that name. Raises UsageError for what is not a folder."""
    found: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"{folder} is not a folder", fix="give a run folder, or one that contains run folders")
        found += [folder] if is_run(folder) else runs_below(folder)
    found = list(dict.fromkeys(path.absolute() for path in found))
    names = Counter(path.name for path in found)
    return {path.name if names[path.name] == 1 else str(path): path for path in found}


def is_exported(history: RunHistory, now: float) -> bool:
    """Whether a run goes on, or ended not long ago."""
    last = max((at for each in history.events[-1:] if (at := seconds_of(each)) is not None), default=None)
    return last is None or now - last < ENDED_S or not status_of(history, now).is_over


class RunCollector:
    """What prometheus_client asks for metrics: the runs in `folders` as they are now."""

    def __init__(self, folders: Sequence[Path], now: Callable[[], float] = time.time) -> None:
        self._folders = folders
        self._now = now
        # Only what was written since is read when Prometheus asks again.
        self._readers: dict[Path, RunReader] = {}
        self._told: dict[Path, str] = {}

    def collect(self) -> "Iterator[Metric]":
        """One family for each metric, with the samples of all runs."""
        return iter(families(self._histories(), self._now()))

    def _histories(self) -> dict[str, RunHistory]:
        now = self._now()
        folders = [folder for folder in self._folders if folder.is_dir()]
        newest = sorted(find_runs(folders).items(), key=lambda each: changed([each[1]]) or 0.0, reverse=True)
        found: dict[str, RunHistory] = {}
        for name, path in newest:
            try:
                history = self._readers.setdefault(path, RunReader(path, "newest")).read()
                if is_exported(history, now):
                    found[name] = history
            except UnreadableRun as error:
                if self._told.get(path) != str(error):  # Prometheus asks again and again
                    print_note(f"{path} is left out: {error}")
                self._told[path] = str(error)
            except (OSError, UsageError):  # removed meanwhile
                pass
            if len(found) == MOST_RUNS:
                break
        paths = {path for _, path in newest}
        self._readers = {path: reader for path, reader in self._readers.items() if path in paths}
        return found


def families(histories: Mapping[str, RunHistory], now: float) -> "Iterable[Metric]":
    """The metrics of runs, by the value of the label `run`, as prometheus_client has them."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    made: dict[str, Any] = {}
    for name, facts in metrics().items():
        family = CounterMetricFamily if facts.get("type") == "counter" else GaugeMetricFamily
        made[name] = family(name, facts["help"], labels=["run", *facts.get("labels", ())])
    for run, history in histories.items():
        for name, labels, value in samples(history, now):
            made[name].add_metric([run, *(labels[each] for each in metrics()[name].get("labels", ()))], value)
    return [family for family in made.values() if family.samples]
