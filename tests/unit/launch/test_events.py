"""What the supervisor writes into the run folder, and prints."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dsrun.launch.memory_fallback import REMEDY_FILE, MemoryFallback
from dsrun.launch.supervisor.ending import AttemptResult
from dsrun.launch.supervisor.events import RunEventWriter
from dsrun.launch.supervisor.failures import FailureInputs, explain
from dsrun.launch.supervisor.policy import AttemptFailure, RestartLimits, RunDecision, decide
from dsrun.recipe.batch import BatchPlan
from dsrun.runs.folder import RunFolder
from dsrun.runs.manifest import write_manifest
from dsrun.runs.records import read_records


@pytest.fixture
def said():
    return []


@pytest.fixture
def ledger(tmp_path, said):
    return RunEventWriter(RunFolder(tmp_path), said.append)


def restart(why: str, fallback: MemoryFallback | None = None) -> RunDecision:
    return RunDecision(action="restart", exit_code=1, wait_s=2.0, why=why, fallback=fallback or MemoryFallback())


def test_unreadable_run_folder_has_no_newest_checkpoint(said):
    """A folder that cannot be read ends no run. As on a file server in trouble; here a name that is too long."""
    assert RunEventWriter(RunFolder(Path("x" * 300)), said.append).newest_checkpoint() is None


def ended(**inputs) -> AttemptResult:
    known = {"failures": Path("none"), "log": Path("none"), "ended": {}, "steps": {}, **inputs}
    return AttemptResult(
        ok=False, stop_requested=False, by_others=False, saved=None, failure_inputs=FailureInputs(**known)
    )


def test_failure_is_recorded_before_anything_is_ended(ledger, said, tmp_path):
    """Also while a rank of this run holds the folder."""
    with RunFolder(tmp_path).acquire():
        ledger.failing(2, ended(ended={1: -9}, steps={1: 7}, detected_s=0.2), first=True)
        ledger.waiting("process 4711 cannot be killed", 30.0)
    failing, waiting = read_records(tmp_path / "events.jsonl")
    assert (failing["kind"], failing["cause"], failing["rank"], failing["step"]) == ("failing", "rank_killed", 1, 7)
    assert (failing["attempt"], failing["seconds"]) == (2, 0.2)
    assert (waiting["kind"], waiting["seconds"]) == ("waiting", 30.0)
    assert len(said) == 1


@pytest.mark.parametrize(
    ("change", "first"),
    [({"ok": True}, True), ({"by_others": True}, True), ({"stop_requested": True}, True), ({}, False)],
)
def test_end_that_is_no_failure_is_not_recorded(change, first, ledger, tmp_path):
    ledger.failing(0, replace(ended(ended={1: -9}), **change), first=first)
    assert not (tmp_path / "events.jsonl").exists()


def test_error_in_configuration_is_not_recorded_early(ledger, tmp_path):
    """The rank may have been refused because another run has the folder."""
    ledger.failing(0, ended(ended={0: 2}), first=True)
    assert not (tmp_path / "events.jsonl").exists()


def test_agent_that_starts_no_rank_is_named():
    failure = explain(ended(unstarted_s=600.0).failure_inputs, lambda text, code: "")
    assert "600 s" in failure.message


def test_restart_event_recorded_and_reported_in_one_line(ledger, said, tmp_path):
    """A restart is recorded, and reported in one line."""
    failure = AttemptFailure(
        cause="rank_killed",
        rank=1,
        exit_code=-9,
        message="rank 1 was killed",
        step=12,
        detected_s=0.1,
        stalled_s=0.02,
    )
    ledger.failed(failure, restart("a rank was killed: again from step 10 in 2 s"), attempt=0)
    failed, restarted = read_records(tmp_path / "events.jsonl")
    assert (failed["kind"], failed["cause"], failed["rank"], failed["step"]) == (
        "failure",
        "rank_killed",
        1,
        12,
    )
    assert (failed["exit_code"], failed["seconds"], failed["attempt"]) == (-9, 0.1, 0)
    assert failed["stalled_s"] == 0.02
    assert (restarted["kind"], restarted["attempt"], restarted["seconds"]) == ("restart", 1, 2.0)
    assert said == ["rank 1 was killed: again from step 10 in 2 s"]


def test_failure_of_unknown_cause_reported_once(ledger, said):
    """A failure of unknown cause is reported once."""
    failure = AttemptFailure(cause="", rank=1, message="rank 1 ended with exit code 1")
    decision = decide([failure], RestartLimits(), progress=[None, None], fallback=MemoryFallback())
    ledger.failed(failure, decision, attempt=0)
    assert said == ["rank 1 ended with exit code 1: again in 1 s (restart 1 of at most 3)"]


@pytest.mark.parametrize(
    ("cause", "max_restarts", "accused"),
    [("ecc_or_xid_error", 0, "3 a hardware error"), ("ecc_or_xid_error", 1, None), ("nccl_network", 0, None)],
)
def test_node_with_hardware_error_named_to_job_script(ledger, tmp_path, monkeypatch, cause, max_restarts, accused):
    """By its number, once the run has ended."""
    monkeypatch.setenv("DSRUN_FAILURES", str(tmp_path))
    failure = AttemptFailure(cause=cause, rank=7, node=3, message="uncorrectable ECC error")
    limits = RestartLimits(max_restarts=max_restarts)
    ledger.failed(failure, decide([failure], limits, progress=[0, 0], fallback=MemoryFallback()), attempt=0)
    file = tmp_path / "faulty-node"
    assert (file.read_text().strip() if file.exists() else None) == accused


def test_node_that_fails_twice_named_to_job_script(ledger, tmp_path, monkeypatch):
    """The failures of earlier attempts and starts count: they are in the run folder."""
    monkeypatch.setenv("DSRUN_FAILURES", str(tmp_path))
    failure = AttemptFailure(
        cause="rank_killed", rank=7, node=3, host="gpu07", exit_code=-9, message="rank 7 was killed"
    )
    ledger.failed(failure, restart("again"), attempt=0)
    assert not (tmp_path / "faulty-node").exists()
    decision = decide([failure], RestartLimits(max_restarts=0), progress=[0, 0], fallback=MemoryFallback())
    ledger.failed(failure, decision, attempt=1)
    assert (tmp_path / "faulty-node").read_text() == "3 2 failures\n"
    events = read_records(tmp_path / "events.jsonl")
    assert [(each["node"], each["failed_host"]) for each in events if each["kind"] == "failure"] == [(3, "gpu07")] * 2


def test_memory_fallback_event_and_remedy_json_for_ranks(ledger, tmp_path):
    """A memory fallback is recorded, and put where the ranks find it."""
    decision = restart("GPU memory exhausted: again with half the micro batch", MemoryFallback(halvings=1))
    ledger.failed(AttemptFailure(cause="cuda_oom"), decision, attempt=0)
    ledger.apply(decision)
    assert [event["kind"] for event in read_records(tmp_path / "events.jsonl")] == [
        "failure",
        "remedy",
        "restart",
    ]
    assert json.loads((tmp_path / REMEDY_FILE).read_text())["halvings"] == 1
    assert ledger.fallback() == MemoryFallback(halvings=1)


@pytest.mark.parametrize("text", ['{"version": 99}', "[" * 100_000, ""])
def test_damaged_remedy_json_is_noted_once(ledger, tmp_path, said, text):
    """A remedy.json that is damaged or of another version does not stop the run."""
    (tmp_path / REMEDY_FILE).write_text(text)
    assert [ledger.fallback(), ledger.fallback()] == [MemoryFallback(), MemoryFallback()]
    assert said == [f"{tmp_path / REMEDY_FILE} is damaged; the run begins with its own memory settings"]


def test_failure_without_known_cause_is_recorded_as_unknown(ledger, tmp_path):
    failure = AttemptFailure(cause="", rank=1, message="rank 1 ended with exit code 1")
    ledger.failed(failure, restart("again"), attempt=0)
    assert read_records(tmp_path / "events.jsonl")[0]["cause"] == "unknown"


def test_only_complete_checkpoints_are_progress(ledger, tmp_path):
    assert ledger.newest_checkpoint() == 0
    for step in (10, 20):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "weights").write_text("w")
    write_manifest(tmp_path / "checkpoint-10", {"step": 10})
    assert ledger.newest_checkpoint() == 10


def test_unwritable_event_log_does_not_end_run(said, tmp_path):
    """An event log that cannot be written does not end the run."""
    ledger = RunEventWriter(RunFolder(tmp_path / "nowhere"), said.append)
    ledger.failed(AttemptFailure(cause="rank_killed", message="rank 0 was killed"), restart("again"), attempt=0)
    assert said == ["rank 0 was killed: again"]


def test_failure_is_recorded_where_a_rank_cannot_be_killed(ledger, tmp_path):
    """It holds the folder still, and the run has ended all the same."""
    failure = AttemptFailure(cause="process_unkillable", rank=0, message="rank 0 cannot be killed")
    with RunFolder(tmp_path).acquire():
        ledger.failed(
            failure, RunDecision(action="stop", exit_code=1, wait_s=0.0, why="", fallback=MemoryFallback()), attempt=0
        )
        ledger.finished_all_the_same(failure)
    assert [each["kind"] for each in read_records(tmp_path / "events.jsonl")] == ["failure", "end"]


def test_refused_run_writes_no_event_into_locked_folder(ledger, tmp_path):
    """A run that was refused writes nothing into the event log of the one that has the folder."""
    refused = AttemptFailure(cause="", rank=0, exit_code=2, message="the folder is in use")
    decision = decide([refused], RestartLimits(), progress=[0, 0], fallback=MemoryFallback())
    with RunFolder(tmp_path).acquire():
        ledger.failed(refused, decision, attempt=0)
    assert read_records(tmp_path / "events.jsonl") == []
    ledger.failed(refused, decision, attempt=0)
    assert len(read_records(tmp_path / "events.jsonl")) == 1


def test_partial_checkpoint_deleted_unless_folder_locked(ledger, said, tmp_path):
    """What a failed save left is deleted, unless somebody else writes there."""
    left = tmp_path / ".saving" / "checkpoint-10" / "latest"
    left.parent.mkdir(parents=True)
    left.touch()
    with RunFolder(tmp_path).acquire():
        ledger.clean_up()
    assert left.exists()
    ledger.clean_up()
    assert not (tmp_path / ".saving").exists()
    assert said == ["removed what was written of checkpoint-10 when its run died"]


def test_batch_on_fewer_nodes_is_that_of_the_remedy_in_force(ledger, tmp_path):
    ledger.apply(restart("memory ran out", MemoryFallback(halvings=1)))
    ledger.regrouped(
        range(3), (0, 2), of=3, batch=BatchPlan(global_batch=24, micro_batch=6, world_size=2, accumulation=2)
    )
    [reduced] = read_records(tmp_path / "events.jsonl")
    assert (reduced["gone"], reduced["micro_batch"], reduced["accumulation"]) == ([1], 3, 4)
