"""--log-format json: lines of the Elastic Common Schema, whatever is to be said."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsrun.runs.records import EventLog
from dsrun.system.terminal.log_format import LineFormatter, ecs_line, event_line, labels_from
from tests.ecs import parsed


def test_order_is_that_of_ecs_loggers():
    assert list(parsed(ecs_line("hello", action="note")))[:4] == ["@timestamp", "log.level", "message", "ecs.version"]


@given(st.text())
def test_any_text_is_one_line(text):
    parsed(ecs_line(text, action="note", fields={"dsrun.text": text}))


def test_tokens_and_control_characters_are_not_shown():
    message = parsed(ecs_line("\x1b[2J hf_abcdefghijklmnopqrst\n", action="note"))["message"]
    assert "hf_" not in message
    assert "\x1b" not in message


def test_numbers_that_json_has_not_are_named():
    found = parsed(ecs_line("step", action="training-progress", fields={"dsrun.loss": math.nan, "dsrun.step": 3}))
    assert found["dsrun.nonfinite"] == ["dsrun.loss"]
    assert (found["dsrun.step"], "dsrun.loss" in found) == (3, False)


def test_labels_name_run_job_and_rank(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    environ = {"DSRUN_OUTPUT": "run", "SLURM_JOB_ID": "4711", "RANK": "0"}
    assert labels_from(environ) == {"run": str(tmp_path / "run"), "job_id": "4711", "rank": "0"}
    assert labels_from({}) == {}


@pytest.mark.parametrize(
    ("kind", "details", "level", "outcome", "kind_of_event"),
    [
        ("start", {"world_size": 8, "attempt": 0}, "info", None, "start"),
        ("checkpoint_end", {"step": 5, "path": "checkpoint-5", "seconds": 1.5}, "info", "success", "info"),
        ("nan", {"step": 5, "message": "loss is NaN"}, "warn", None, "info"),
        ("failure", {"cause": "cuda_oom", "message": "no memory", "rank": 3}, "error", "failure", "error"),
        ("end", {"exit_code": 0, "step": 9, "seconds": 60}, "info", "success", "end"),
    ],
)
def test_events_of_the_ledger(tmp_path, kind, details, level, outcome, kind_of_event):
    """As the ranks write them; time, host and process are the writer's."""
    with EventLog(tmp_path / "events.jsonl") as log:
        record = log.write(kind, **details)
    found = parsed(event_line(record))
    assert found["@timestamp"] == record["time"]
    assert (found["log.level"], found.get("event.outcome"), found["event.type"]) == (level, outcome, [kind_of_event])
    assert found["event.action"] == kind.replace("_", "-")
    known = {f"dsrun.{name}": value for name, value in details.items() if name != "message"}
    assert known.items() <= found.items()
    assert found.get("event.duration") == (details["seconds"] * 1_000_000_000 if "seconds" in details else None)
    assert found.get("error.code") == details.get("cause")


def test_output_of_programs_becomes_lines():
    """Pieces are joined, progress bars show their last state, empty lines are left out, ECS stays as it is."""
    formatter = LineFormatter()
    own = ecs_line("from rank 0", action="output").encode()
    found = b"".join(map(formatter.feed, [b"one\ntw", b"o\n\n 10%\r 20%\r\n", own[:30], own[30:], b"\xff last"]))
    lines = (found + formatter.end()).decode().splitlines(keepends=True)
    assert [parsed(line)["message"] for line in lines] == ["one", "two", "20%", "from rank 0", "� last"]
    assert lines[3].encode() == own
    assert formatter.end() == b""


def test_line_without_end_is_written_in_pieces():
    formatter = LineFormatter()
    assert len(formatter.feed(b"x" * 70_000)) > 70_000
    assert formatter.end() == b""
