"""A run folder as it is read: which steps count, and what state the run is in."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from dsrun.diagnosis.run_diagnosis import of_run
from dsrun.errors import UsageError
from dsrun.monitoring.run_status import recent_step_s, status_of
from dsrun.runs.folder import STALE_S, RunFolder, is_run
from dsrun.runs.node_status import NodeStatus, RankProgress, read_node_status, write_node_status
from dsrun.runs.reader import read_history
from dsrun.system.host import hostname

START = "2026-11-25T10:00:00.000Z"
AT_START = 1795600800.0


def run_folder(path: Path, *, metrics: Iterable[Mapping[str, Any]] = (), events: Iterable[Mapping[str, Any]]) -> Path:
    """A run folder with these lines."""
    for name, lines in (("metrics.jsonl", metrics), ("events.jsonl", events)):
        (path / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def at(second: float) -> str:
    """The time so many seconds after START."""
    return f"2026-11-25T10:{int(second) // 60:02}:{second % 60:06.3f}Z"


def event(kind: str, second: float = 0.0, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "time": at(second), **more}


def test_repeated_steps_count_once(tmp_path: Path) -> None:
    """A restarted run goes on from its checkpoint: the steps after it were lost, also those it has not made again."""
    lines = [{"step": step, "loss": 9.0} for step in (10, 20, 30)] + [{"step": 30, "eval_loss": 8.0}]
    lines += [{"step": 20, "loss": 5.0}]
    history = read_history(run_folder(tmp_path, metrics=lines, events=[event("start")]))
    assert history.series("loss") == [(10, 9.0), (20, 5.0)]
    assert history.evaluations == ()


def test_values_that_are_not_finite_are_no_points(tmp_path: Path) -> None:
    lines = [{"step": 1, "loss": None, "nonfinite": {"loss": "nan"}}, {"step": 2, "loss": 1.5}]
    history = read_history(run_folder(tmp_path, metrics=lines, events=[event("start")]))
    assert history.series("loss") == [(2, 1.5)]


def test_torn_lines_and_foreign_keys_are_read(tmp_path: Path) -> None:
    run_folder(tmp_path, metrics=[{"step": 1, "loss": 1.0, "new": [1]}], events=[event("start")])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "lo')
    assert read_history(tmp_path).series("loss") == [(1, 1.0)]


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="contains no run"):
        read_history(tmp_path)
    with pytest.raises(UsageError, match="does not exist"):
        read_history(tmp_path / "none")


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ([event("start"), event("training", 1), event("end", 9, exit_code=0, step=5)], "finished"),
        ([event("start"), event("failure", 3, cause="cuda_oom", message="rank 1: no memory")], "failed"),
        ([event("start"), event("training", 1), event("signal", 3, signal="SIGTERM")], "stopped"),
        ([event("start"), event("failure", 3), event("restart", 4, attempt=1)], "killed"),
        ([event("start"), event("training", 1)], "killed"),
        ([event("start"), event("end", 5, exit_code=75)], "stopped"),
        ([event("start"), event("end", 5, exit_code=1)], "failed"),
        ([event("start"), event("training", 1), event("waiting", 3)], "killed"),
        ([event("failure", 3), event("waiting", 4)], "failed"),
        ([event("failure", 3), event("restart", 4, attempt=1), event("waiting", 5)], "killed"),
        ([event("start"), event("failing", 3)], "failed"),
    ],
)
def test_state_follows_from_the_last_event(tmp_path: Path, events: list[dict[str, Any]], state: str) -> None:
    assert status_of(read_history(run_folder(tmp_path, events=events)), AT_START + 60).state == state


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ([], "starting"),
        ([event("start")], "starting"),
        ([event("start", program="ddp")], "training"),
        ([event("start", program="ddp"), event("training", 1)], "training"),
        ([event("start"), event("failing", 3)], "restarting"),
        ([event("failure", 3), event("restart", 4)], "restarting"),
        ([event("failure", 3), event("restart", 4), event("waiting", 5)], "restarting"),
        ([event("failure", 3), event("restart", 4), event("start", 6, program="ddp")], "training"),
        ([event("start"), event("end", 5, exit_code=0)], "finished"),
    ],
)
def test_supervisor_that_lives_keeps_the_run_going(tmp_path: Path, events: list[dict[str, Any]], state: str) -> None:
    """Between two attempts no rank has the folder, and of another program none ever does."""
    run_folder(tmp_path, events=events)
    with RunFolder(tmp_path).acquire_as_supervisor():
        assert status_of(read_history(tmp_path), AT_START + 10_000).state == state


def test_folder_that_nobody_kept_a_record_of_is_silent(tmp_path: Path) -> None:
    """One whose holder died before its first event was killed."""
    write_node_status(tmp_path, NodeStatus(time=at(50), host="gpu01", node=0, attempt=1, world_size=1))
    assert status_of(read_history(tmp_path), AT_START + 500).state == "silent"
    (tmp_path / ".supervisor").write_text(f'{{"pid": 7, "host": "{hostname()}", "since": "", "began": null}}')
    assert status_of(read_history(tmp_path), AT_START + 500).state == "killed"


def test_run_of_another_machine_goes_on_while_its_node_reports(tmp_path: Path) -> None:
    """Where its lock cannot be seen, what it or its supervisor writes counts: an evaluation may take long."""
    run_folder(tmp_path, events=[event("start"), event("training", 1)])
    for file in tmp_path.iterdir():
        os.utime(file, (0, 0))
    (tmp_path / ".lock").write_text('{"pid": 7, "host": "another", "since": "", "began": null}')
    assert status_of(read_history(tmp_path)).state == "killed"
    write_node_status(tmp_path, NodeStatus(time=START, host="another", node=0, attempt=0, world_size=1))
    assert status_of(read_history(tmp_path)).state == "training"


@pytest.mark.parametrize(
    ("last", "age_s", "state"),
    [
        (event("end", 9, exit_code=0), 1, "finished"),
        (event("failure", 9, cause="cuda_oom"), STALE_S + 1, "failed"),
        (event("failure", 9, cause="cuda_oom"), 1, "restarting"),
        (event("signal", 9, signal="SIGTERM"), STALE_S + 1, "stopped"),
        (event("signal", 9, signal="SIGTERM"), 1, "training"),
    ],
)
def test_run_of_another_machine_that_has_just_ended(
    tmp_path: Path, last: dict[str, Any], age_s: float, state: str
) -> None:
    """What was written last is its end, or a failure after which its supervisor reports no more."""
    run_folder(tmp_path, events=[event("start"), event("training", 1), last])
    (tmp_path / ".lock").write_text('{"pid": 7, "host": "another", "since": "", "began": null}')
    write_node_status(tmp_path, NodeStatus(time=at(8), host="another", node=0, attempt=0, world_size=1))
    written = time.time() - age_s
    for file in tmp_path.rglob("*"):
        os.utime(file, (written, written))
    assert status_of(read_history(tmp_path), AT_START + 8 + age_s).state == state
    assert (of_run(tmp_path).cause.code == "running") == (state in ("restarting", "training"))


def test_a_held_folder_is_a_run_that_goes_on(tmp_path: Path) -> None:
    """The lock of a process that lives decides, whatever the last event of an earlier attempt was."""
    run_folder(tmp_path, events=[event("start"), event("training", 1, step=0, max_steps=100)])
    with RunFolder(tmp_path).acquire():
        history = read_history(tmp_path)
        assert status_of(history).state == "training"
        for last, state in ((event("waiting", 4), "training"), (event("checkpoint_begin", 5, step=10), "saving")):
            (tmp_path / "events.jsonl").open("a").write(json.dumps(last) + "\n")
            assert status_of(read_history(tmp_path)).state == state


def test_figures_of_a_run_that_goes_on(tmp_path: Path) -> None:
    metrics = [{"step": 10 * n, "loss": 2.0 / n, "time": at(20 * n), "tokens_per_s": 50.0} for n in (1, 2, 3)]
    metrics += [{"step": 20, "eval_loss": 0.7, "time": at(45)}]
    metrics = sorted(metrics, key=lambda each: each["time"])
    events = [
        event("start", world_size=4),
        event("training", 1, step=0, max_steps=100),
        event("checkpoint_end", 50, step=20, seconds=1.0),
    ]
    run_folder(tmp_path, metrics=metrics, events=events)
    (tmp_path / "run.json").write_text(json.dumps({"model": "t5", "specs": {"train": {}}}))
    with RunFolder(tmp_path).acquire():
        status = status_of(read_history(tmp_path), AT_START + 70)
    assert (status.step, status.max_steps, status.step_s, status.eta_s) == (30, 100, 2.0, 140.0)
    assert (status.checkpoint_step, status.checkpoint_age_s, status.since_s) == (20, 20.0, 70.0)
    assert status.best is not None
    assert (status.best.metric, status.best.value, status.best.step) == ("eval_loss", 0.7, 20)
    assert (status.world_size, status.model) == (4, "t5")


def test_goodput_counts_what_was_trained_since_the_last_event(tmp_path: Path) -> None:
    """In the first minute of training there is no event after its beginning."""
    metrics = [{"step": n, "loss": 2.0, "time": at(10 + n)} for n in range(1, 31)]
    run_folder(tmp_path, metrics=metrics, events=[event("start"), event("training", 10, step=0)])
    with RunFolder(tmp_path).acquire():
        assert status_of(read_history(tmp_path)).goodput == 0.75
    assert status_of(read_history(tmp_path)).goodput == 0  # it was killed, and none of that is on the disk


@pytest.mark.parametrize(("steps", "seconds", "share"), [(0, 14, None), (30, 40, 0.75)])
def test_time_of_killed_program_lasts_until_its_last_sign(
    tmp_path: Path, steps: int, seconds: float, share: float | None
) -> None:
    metrics = [{"step": n, "loss": 2.0, "time": at(10 + n)} for n in range(1, steps + 1)]
    began = [event("training", 10, step=0)] if steps else []
    run_folder(tmp_path, metrics=metrics, events=[event("start", program="ddp"), *began])
    write_node_status(tmp_path, NodeStatus(time=at(14), host="another", node=0, attempt=0, world_size=1))
    status = status_of(read_history(tmp_path))
    assert (status.state, status.since_s, status.goodput) == ("killed", seconds, share)


def test_steps_logged_during_a_save_do_not_end_it(tmp_path: Path) -> None:
    metrics = [{"step": n, "loss": 2.0, "time": at(10 + n)} for n in range(1, 31)]
    events = [event("start"), event("training", 10, step=0), event("checkpoint_begin", 20, step=10)]
    run_folder(tmp_path, metrics=metrics, events=events)
    with RunFolder(tmp_path).acquire():
        status = status_of(read_history(tmp_path))
    assert status.time is not None
    assert (status.time.total, status.time.saving) == (20, 0)


def test_the_best_evaluation_is_by_the_runs_own_metric(tmp_path: Path) -> None:
    metrics = [{"step": 1, "eval_bleu": 3.0, "eval_loss": 1.0}, {"step": 2, "eval_bleu": 9.0, "eval_loss": 2.0}]
    run_folder(tmp_path, metrics=metrics, events=[event("start")])
    (tmp_path / "run.json").write_text(json.dumps({"specs": {"train": {"metric_for_best_model": "bleu"}}}))
    best = status_of(read_history(tmp_path)).best
    assert best is not None
    assert (best.metric, best.value, best.step, best.rank) == ("eval_bleu", 9.0, 2, -9.0)
    assert replace(best, greater_is_better=False).rank == 9.0


def test_failure_and_its_cause_are_told(tmp_path: Path) -> None:
    events = [event("start"), event("failure", 3, cause="cuda_oom", message="rank 1 has no memory")]
    status = status_of(read_history(run_folder(tmp_path, events=events)))
    assert (status.cause, status.message) == ("cuda_oom", "rank 1 has no memory")


def test_earlier_failure_is_no_cause_of_a_run_that_finished_or_goes_on(tmp_path: Path) -> None:
    events = [event("failure", 3, cause="cuda_oom"), event("restart", 4), event("training", 5)]
    run_folder(tmp_path, events=events)
    with RunFolder(tmp_path).acquire():
        assert status_of(read_history(tmp_path)).cause is None
    status = status_of(read_history(run_folder(tmp_path, events=[*events, event("end", 9, exit_code=0)])))
    assert (status.state, status.cause) == ("finished", None)


def test_step_time_is_of_the_last_twenty() -> None:
    """Ten of 1 s and ten of 3 s, and before them one of either."""
    for before in (1, 3):
        seconds = accumulate([before, *[1] * 10, *[3] * 10], initial=0)
        steps = [{"step": step, "time": at(second)} for step, second in enumerate(seconds)]
        assert recent_step_s(steps) == 2.0


def test_step_time_ignores_one_pause() -> None:
    """An evaluation between two lines does not make the run slow."""
    steps = [{"step": step, "time": at(second)} for step, second in ((1, 1), (2, 2), (3, 3), (4, 50), (5, 51))]
    assert recent_step_s(steps) == 1.0
    assert recent_step_s(steps[:1]) is None


def test_node_status_survives_a_round_trip(tmp_path: Path) -> None:
    rank = RankProgress(rank=0, pid=7, phase="training", step=12, silent_s=0.5, step_s=1.5, wait_s=0.1)
    status = NodeStatus(time=START, host="gpu01", node=0, attempt=1, world_size=2, ranks=(rank,))
    write_node_status(tmp_path, status)
    (tmp_path / "status" / "node-1.json").write_text('{"time": "2026')
    assert read_node_status(tmp_path) == (status,)


@pytest.mark.parametrize("odd", [[], {}, "7", None, True, 1e300])
def test_values_of_another_type_are_no_error(tmp_path: Path, odd: Any) -> None:
    """As another program, or a newer dsrun, may write them."""
    run_folder(tmp_path, events=[event("checkpoint_begin", 1, step=odd), event("end", 2, exit_code=odd, step=odd)])
    (tmp_path / "status").mkdir()
    node = {"time": START, "host": "n", "node": 0, "attempt": 0, "world_size": 1}
    (tmp_path / "status" / "node-0.json").write_text(json.dumps({**node, "cpu": odd}))
    history = read_history(tmp_path)
    assert status_of(history).is_over
    assert len(history.nodes) == (odd is None or odd == 1e300)


def test_folder_that_may_not_be_read_is_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read everything, so the system's answer is played."""

    def refuse(_path: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_file", refuse)
    assert not is_run(tmp_path)
