"""Values that a damaged disk or another program left at any key of any record: whoever reads a run gets over them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dsrun.cli.monitor.section import as_json, of_history
from dsrun.diagnosis.run_diagnosis import of_run
from dsrun.events import event_kinds
from dsrun.monitoring.comparison import differences, metrics
from dsrun.monitoring.event_text import describe
from dsrun.monitoring.prometheus.samples import samples
from dsrun.monitoring.run_status import status_json, status_of
from dsrun.report.data import read_run
from dsrun.report.page import render_page, report_of
from dsrun.runs.goodput import goodput, goodput_line, mean_time_between_failures
from dsrun.runs.reader import RunHistory, read_history
from dsrun.runs.records import records_in, revive
from dsrun.system.terminal.log_format import event_line
from tests.run_folders import at, event, steps, write_run

NOW = 1_800_000_000.0
VALUES = (
    "1" + "0" * 400, "-1", "NaN", "Infinity", "1e308", "-1e308", "[]", "{}", "[[]]", '"x"', "null", "true",
    '"9999-99-99"', "7" * 4000, '{"loss": ["nan"]}', '"\\ud800"',
)  # fmt: skip
WRITER: dict[str, Any] = {"host": "n", "boot": "b", "uptime": 7.0, "elapsed": 1.0, "pid": 5}
COMMON = ("time", "kind", *WRITER, "nonfinite", "message", "step", "attempt", "exit_code", "max_steps", "world_size")
BEFORE = [
    {**event("start", 0.0, world_size=2, attempt=0, starting_s=3.0), **WRITER},
    {**event("training", 1.0, step=0, max_steps=30), **WRITER},
]
FAILED = {**event("failure", 9.0, cause="cuda_oom", message="CUDA out of memory"), **WRITER, "uptime": 15.0}
EVALUATION = {"time": at(4), "step": 3, "eval_loss": 1.0, "eval_bleu": 3.0}


def with_value(record: dict[str, Any], key: str, value: str) -> bytes:
    """A line of JSON with a value that Python may have no literal for."""
    others = json.dumps({name: each for name, each in record.items() if name != key})
    return f"{others[:-1]}, {json.dumps(key)}: {value}}}".encode()


def events_with(value: str) -> Iterator[bytes]:
    """An event of each kind for each of its keys, with this value there."""
    for name, kind in event_kinds().items():
        for key in dict.fromkeys([*COMMON, *re.findall(r"`(\w+)`", kind.keys)]):
            yield with_value({**event(name, 2.0, step=3), **WRITER}, key, value)


def metrics_with(value: str) -> Iterator[bytes]:
    """A step or an evaluation for each of their keys, with this value there."""
    for record in (steps(3)[-1], EVALUATION):
        for key in (*record, "nonfinite"):
            yield with_value(record, key, value)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: value[:12])
def test_last_event_with_a_hostile_value(value, tmp_path):
    for record in records_in(events_with(value)):
        happened = (*BEFORE, record, FAILED)
        assert describe(record)
        json.loads(event_line(record))
        history = RunHistory(path=tmp_path, events=happened[:-1], steps=tuple(steps(2)))
        json.dumps(status_json(status_of(history, NOW, lock_tries=1)))
        assert 0 <= goodput(happened).share <= 1
        assert goodput_line(goodput(happened[:-1]))
        assert mean_time_between_failures(happened, 2) > 0


@pytest.mark.parametrize("value", VALUES, ids=lambda value: value[:12])
def test_last_metrics_with_a_hostile_value(value, tmp_path):
    for record in map(revive, records_in(metrics_with(value))):
        history = RunHistory(path=tmp_path, events=tuple(BEFORE), steps=(*steps(2), record), evaluations=(record,))
        status = status_of(history, NOW, lock_tries=1)
        json.dumps(as_json(of_history(history, status, NOW)))
        metrics([history, history], [status, status])
        list(samples(history, NOW))


@pytest.mark.parametrize("value", VALUES, ids=lambda value: value[:12])
def test_run_full_of_a_hostile_value(value, tmp_path):
    run = write_run(tmp_path / "run")
    add(run / "events.jsonl", [*map(json_line, BEFORE), *events_with(value), json_line(FAILED)])
    add(run / "metrics.jsonl", [*map(json_line, steps(2)), *metrics_with(value)])
    history = read_history(run, "view")
    assert differences([history, history]) == []
    list(samples(history, NOW))
    assert of_run(run).cause.code == "cuda_oom"
    report = report_of([read_run(run, "run")])
    json.dumps(report.as_dict())
    assert render_page(report)


def json_line(record: dict[str, Any]) -> bytes:
    return json.dumps(record).encode()


def add(file: Path, lines: list[bytes]) -> None:
    file.write_bytes(b"\n".join(lines) + b"\n")
