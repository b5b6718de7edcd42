"""Runs side by side: the settings that differ, their metrics, and one curve of each."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dsrun.datafiles import toml_beside
from dsrun.errors import UsageError, did_you_mean
from dsrun.monitoring.run_status import RunStatus
from dsrun.runs.reader import DEFAULT, RunHistory, metric_keys
from dsrun.runs.records import LedgerRecord, finite
from dsrun.system.terminal.secrets import masked_values, without_tokens

_TABLE = toml_beside(__file__)
_SAME: Mapping[str, str] = _TABLE["same"]
_OF_BEST, _MEDIANS = ("metric", "value", "step"), ("tokens_per_s", "mfu", "padding")


@dataclass(frozen=True, kw_only=True)
class ComparisonRow:
    """One line of a comparison: a value for each run, None where a run has none."""

    name: str
    values: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class RunDifference(ComparisonRow):
    """A setting, or a fact about what the runs ran on."""

    kind: Literal["setting", "environment"]


def labels(paths: Sequence[Path]) -> list[str]:
    """A short name for the run in each folder: the folder's, with those above it where two are called the same."""
    paths = [path.absolute() for path in paths]
    for parts in range(1, max(len(path.parts) for path in paths) + 1):
        names = [str(Path(*path.parts[-parts:])) for path in paths]
        if len(set(names)) == len(set(paths)):
            break
    return names


def configuration(history: RunHistory) -> dict[str, Any]:
    """The settings of a run and what they resolve to, flat: "batch.micro_batch", "learning_rate". Tokens are masked."""
    settings = {name: value for name, value in history.settings.items() if name not in _TABLE["of_one_run"]}
    resolved = _flat(_sections(history, _TABLE["sections"]))
    others = {name: value for name, value in _flat(masked_values(settings)).items() if name not in resolved}
    return resolved | others | _flat(_sections(history, ["deepspeed"]))


def differences(histories: Sequence[RunHistory]) -> list[RunDifference]:
    """What is not the same in all runs: settings that somebody gave, all others, and facts such as versions.

    A run of which nothing is known differs in everything, which tells nothing: it is not compared."""
    settings = _differing([configuration(history) for history in histories])
    facts = _differing([_flat(_sections(history, _TABLE["around"])) for history in histories])
    given = {name for history in histories for name, source in history.sources.items() if source != DEFAULT}
    given |= {_SAME[name] for name in given & _SAME.keys()}
    told = [name for name in settings if not _is_told(name, settings)]
    told.sort(key=lambda name: name not in given)
    return [
        *(RunDifference(name=name, values=settings[name], kind="setting") for name in told),
        *(RunDifference(name=name, values=values, kind="environment") for name, values in facts.items()),
    ]


def _sections(history: RunHistory, names: Sequence[str]) -> dict[str, Any]:
    run = {name: history.run[name] for name in names if name in history.run}
    shown: dict[str, Any] = masked_values(run)
    return shown


def _differing(found: Sequence[Mapping[str, Any]]) -> dict[str, tuple[Any, ...]]:
    known = [each for each in found if each]
    names = dict.fromkeys(name for each in known for name in each)
    differing = (name for name in names if any(each.get(name) != known[0].get(name) for each in known))
    return {name: tuple(each.get(name) for each in found) for name in differing}


def _is_told(name: str, differing: Mapping[str, tuple[Any, ...]]) -> bool:
    """Whether another row tells the very same."""
    other = differing.get(_SAME.get(name, ""))
    return other is not None and list(map(str, other)) == list(map(str, differing[name]))


def metrics(histories: Sequence[RunHistory], statuses: Sequence[RunStatus]) -> list[ComparisonRow]:
    """State, progress, losses, the evaluations at their best and at the end, speed and goodput of each run."""
    found = {name: [getattr(status, name) for status in statuses] for name in ("state", "step", "max_steps", "loss")}
    found["lowest_loss"] = [min((y for _, y in history.series("loss")), default=None) for history in histories]
    for name in metric_keys(record for history in histories for record in history.evaluations):
        found[name] = [curve[-1][1] if (curve := history.series(name)) else None for history in histories]
    found |= {f"best_{name}": [getattr(each.best, name, None) for each in statuses] for name in _OF_BEST}
    found["step_s"] = [status.step_s for status in statuses]
    for name in _MEDIANS:
        found[name] = [statistics.median(v) if (v := _values(each.steps, name)) else None for each in histories]
    found["gpu_memory_peak"] = [max(_values(history.steps, "gpu_memory_peak"), default=None) for history in histories]
    found["seconds"] = [status.since_s for status in statuses]
    found |= {name: [getattr(status, name) for status in statuses] for name in ("goodput", "restarts")}
    rows = (ComparisonRow(name=name, values=tuple(values)) for name, values in found.items())
    return [row for row in rows if any(each is not None for each in row.values)]


def curves(histories: Sequence[RunHistory], metric: str) -> dict[str, list[tuple[int, float]]]:
    """The (step, value) of `metric` of each run by its label. Raises UsageError where no run has it."""
    names = labels([history.path for history in histories])
    found = {label: history.series(metric) for label, history in zip(names, histories, strict=True)}
    if not any(found.values()):
        records = [record for history in histories for record in (*history.steps[-20:], *history.evaluations[-20:])]
        known = sorted({str(key) for each in records for key in each if finite(each[key]) is not None} - {"step"})
        fix = did_you_mean(metric, known, f"there are {', '.join(known)}" if known else "nothing was logged yet")
        raise UsageError(f"--metric: none of the runs has logged {metric}", fix=fix)
    return found


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            text = json.dumps(value) if isinstance(value, list) else value
            flat[f"{prefix}{name}"] = without_tokens(text) if isinstance(text, str) else text
    return flat


def _values(records: Sequence[LedgerRecord], key: str) -> list[float]:
    return [value for each in records if (value := finite(each.get(key))) is not None]
