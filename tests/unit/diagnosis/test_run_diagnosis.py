"""The verdict over a run folder with its ledger."""

import json
import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsrun.diagnosis.rules import causes
from dsrun.diagnosis.run_diagnosis import of_run
from dsrun.errors import UsageError
from dsrun.findings.finding import text_of
from dsrun.runs.folder import RunFolder
from dsrun.runs.manifest import write_manifest
from dsrun.runs.node_status import NodeStatus, RankProgress, write_node_status

CORPUS = Path(__file__).parents[2] / "data" / "causes"
LOST = CORPUS / "nccl_network" / "gloo-peer-lost.txt"
OOM = CORPUS / "cuda_oom" / "tr-oom.txt"
CRASH = "Traceback (most recent call last):\nKeyError: 'labels'\n"
NAN = "the loss of step 7 is NaN (lower --learning_rate)"


def event(kind: str, **details: Any) -> dict[str, Any]:
    return {"time": "2026-11-21T04:48:00.123Z", "kind": kind, **details}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    (tmp_path / "run.json").write_text("{}")
    return tmp_path


def log(run: Path, rank: int, attempt: int, text: str) -> Path:
    path = run / "logs" / f"rank-{rank}.attempt-{attempt}.log"
    path.write_text(text)
    return path


def ledger(run: Path, *events: dict[str, Any]) -> None:
    (run / "events.jsonl").write_text("".join(json.dumps(each) + "\n" for each in events))


def test_diagnose_uses_logs_of_last_attempt_only(run: Path) -> None:
    """Only the last attempt's logs count."""
    log(run, 0, 0, OOM.read_text())
    log(run, 0, 1, LOST.read_text())
    culprit = log(run, 1, 1, "OSError: [Errno 28] No space left on device\n")
    verdict = of_run(run)
    assert (verdict.cause.code, verdict.rank, verdict.where) == ("disk_full", 1, f"{culprit}:1")


def test_diagnose_prefers_supervisor_event_to_rank_logs(run: Path) -> None:
    """What the supervisor saw outweighs what ranks say of each other."""
    ledger(
        run,
        event("start"),
        event("failure", cause="rank_killed", rank=1, message="rank 1 was killed (SIGKILL)"),
    )
    log(run, 0, 0, LOST.read_text())
    verdict = of_run(run)
    assert (verdict.cause.code, verdict.rank, verdict.evidence) == (
        "rank_killed",
        1,
        "rank 1 was killed (SIGKILL)",
    )
    assert verdict.where == str(run / "events.jsonl")
    assert [found.code for found in verdict.findings] == ["rank_killed", "nccl_network"]


def test_diagnose_shows_log_line_of_recorded_cause(run: Path) -> None:
    """A recorded cause is shown with the log line that tells it."""
    ledger(run, event("failure", cause="cuda_oom", rank=1, message="OutOfMemoryError"))
    path = log(run, 1, 0, OOM.read_text())
    verdict = of_run(run)
    assert (verdict.cause.code, verdict.where) == ("cuda_oom", f"{path}:8")


def test_repeated_crash_shows_its_exception(run: Path) -> None:
    """The same crash twice is shown with the exception that the log has."""
    ledger(run, event("failure", cause="deterministic_crash", rank=1, message="rank 1 ended with exit code 1"))
    path = log(run, 1, 0, CRASH)
    verdict = of_run(run)
    assert (verdict.cause.code, verdict.where) == ("deterministic_crash", f"{path}:2")
    assert [each.code for each in verdict.findings] == ["deterministic_crash"], "the line is shown once"
    assert verdict.evidence == "KeyError: 'labels'"


@pytest.mark.parametrize(
    ("text", "others"),
    [
        (f'Traceback (most recent call last):\n  File "x.py", line 1\ndsrun.train.NanLossError: {NAN}\n', []),
        ("rank 1 exited with code 1\n", []),
        (CRASH, ["data_value"]),
    ],
)
def test_unknown_line_that_repeats_recorded_cause_is_left_out(run: Path, text: str, others: list[str]) -> None:
    """What no rule knows is news only where it tells more than the recorded failure."""
    ledger(run, event("failure", cause="nan_loss", rank=1, message=NAN))
    log(run, 1, 0, text)
    verdict = of_run(run)
    assert verdict.cause.code == "nan_loss"
    assert [found.code for found in verdict.findings[1:]] == others


def test_diagnose_restarted_and_finished_run_is_healthy(run: Path) -> None:
    """A run that was restarted and ended well is healthy."""
    ledger(run, event("failure", cause="rank_killed"), event("restart"), event("end", exit_code=0))
    log(run, 0, 0, LOST.read_text())
    assert of_run(run).cause.code == "none"


def test_diagnose_ignores_failure_before_later_training(run: Path) -> None:
    """A failure is over once training has gone on after it."""
    ledger(
        run,
        event("failure", cause="rank_killed"),
        event("restart"),
        event("start"),
        event("training", step=4),
    )
    log(run, 0, 1, "step 5\n")
    with RunFolder(run).acquire():
        assert of_run(run).cause.code == "running"


def test_diagnose_nan_loss_in_metrics_of_finished_run(run: Path) -> None:
    """A loss that became NaN is found in the metrics of a run that ended well."""
    ledger(run, event("end", exit_code=0))
    (run / "metrics.jsonl").write_text('{"step": 1, "loss": null, "nonfinite": {"loss": "nan"}}\n' * 20)
    assert of_run(run).cause.code == "nan_loss"


def test_diagnose_interrupted_run_is_no_failure(run: Path) -> None:
    """A run that was told to stop is no failure."""
    ledger(run, event("start"), event("signal", step=3))
    verdict = of_run(run)
    assert verdict.cause.code == "interrupted"
    assert [found.level for found in verdict.findings] == ["warning"]


def test_diagnose_run_without_end_event_by_its_logs(run: Path) -> None:
    """A run that ended without an event is diagnosed by its logs."""
    ledger(run, event("start"), event("training", step=0))
    (run / "slurm-71.out").write_text(
        "slurmstepd: error: *** JOB 71 ON n CANCELLED AT 2026-11-21T06:00:12 DUE TO TIME LIMIT ***\n"
    )
    assert of_run(run).cause.code == "slurm_time_limit"


def test_diagnose_folder_without_logs_refused(tmp_path: Path) -> None:
    """A folder without logs is not taken for a run."""
    with pytest.raises(UsageError, match="contains no logs"):
        of_run(tmp_path)


def test_run_whose_processes_were_killed_is_not_healthy(run: Path) -> None:
    """A run without an end, whose process is gone, was killed; the step that it had logged is named."""
    ledger(run, event("start"), event("training", step=0))
    log(run, 0, 0, "step 5\n")
    (run / "metrics.jsonl").write_text('{"time": "2026-11-21T04:48:00.123Z", "step": 5, "loss": 2.0}\n')
    (run / ".lock").write_text(json.dumps({"pid": 2**22 - 1, "host": socket.gethostname(), "since": "?", "began": 1.0}))
    verdict = of_run(run)
    assert (verdict.cause.code, verdict.failed) == ("run_killed", True)
    assert f"step 5 was logged at 2026-11-21T04:48:00.123Z; process {2**22 - 1}" in verdict.evidence


def test_run_that_goes_on_in_silence(run: Path) -> None:
    """ "Nothing to do" would be wrong: its watchdog has a limit that may be far away."""
    ledger(run, event("start"), event("training"))
    rank = RankProgress(rank=1, pid=1, phase="saving", step=7, silent_s=200.0, step_s=1.0)
    node = NodeStatus(time="2026-11-26T00:00:00Z", host="a", node=0, attempt=0, world_size=2, ranks=(rank,))
    write_node_status(run, node)
    with RunFolder(run).acquire():
        verdict = of_run(run)
        assert verdict.cause.code == "running_silent"
        write_node_status(run, replace(node, ranks=(replace(rank, silent_s=2.0),)))
        assert of_run(run).cause.code == "running"


def test_run_whose_ranks_are_being_ended_has_failed(run: Path) -> None:
    """One of them may hold the folder for ever; afterwards nobody does, and the supervisor still lives."""
    ledger(run, event("start"), event("training"), event("failing", cause="rank_hung", rank=1, message="rank 1 hangs"))
    with RunFolder(run).acquire():
        assert (of_run(run).cause.code, of_run(run).rank) == ("rank_hung", 1)
    assert of_run(run).cause.code == "rank_hung"


def test_run_that_goes_on_is_running(run: Path) -> None:
    """A run whose folder is locked is running; what its logs show stands beside."""
    ledger(run, event("start"), event("training", step=0))
    log(run, 0, 0, CRASH)
    with RunFolder(run).acquire():
        verdict = of_run(run)
    assert (verdict.cause.code, verdict.failed) == ("running", False)
    assert [found.code for found in verdict.findings] == ["running", "data_value"]


def test_run_of_another_host_runs_while_it_writes(run: Path) -> None:
    """A run of a host whose locks are not seen here is running if it has just written something."""
    ledger(run, event("start"), event("training", step=0))
    (run / ".lock").write_text(json.dumps({"pid": 12, "host": "elsewhere", "since": "?", "began": 1.0}))
    assert of_run(run).cause.code == "running"
    os.utime(run / "events.jsonl", (0, 0))
    assert of_run(run).cause.code == "run_killed"


def test_run_of_another_host_that_ended_is_not_running(run: Path) -> None:
    """An end that was written counts more than a lock file that a finished run leaves."""
    ledger(run, event("start"), event("training", step=0), event("end", exit_code=0))
    (run / ".lock").write_text(json.dumps({"pid": 12, "host": "elsewhere", "since": "?", "began": 1.0}))
    assert of_run(run).cause.code == "none"


def test_failure_without_known_cause_is_unknown(run: Path) -> None:
    """A recorded failure is one although no rule and no log knows its cause."""
    ledger(run, event("start"), event("failure", message="rank 0 ended with exit code 3"))
    verdict = of_run(run)
    assert (verdict.cause.code, verdict.evidence) == ("unknown", "rank 0 ended with exit code 3")


@pytest.mark.parametrize(
    ("last", "cause"),
    [
        (event("signal", signal="SIGTERM", step=3), "interrupted"),
        (event("signal", signal="SIGINT"), "interrupted"),
        (event("training", step=0), "run_killed"),
    ],
)
def test_no_checkpoint_of_program_is_promised(run: Path, last: dict[str, Any], cause: str) -> None:
    """What it saves is not known."""
    ledger(run, event("start", program="ddp"), last)
    verdict = of_run(run)
    assert (verdict.cause.code, verdict.fix) == (cause, verdict.cause.other_fix)
    assert verdict.findings[0].fix == verdict.fix
    ledger(run, event("start"), last)
    assert of_run(run).fix == of_run(run).cause.fix


def test_running_program_names_log_that_it_writes(run: Path) -> None:
    ledger(run, event("start", program="ddp"))
    with RunFolder(run).acquire():
        assert "launcher.log" in of_run(run).fix


@pytest.mark.parametrize(
    "output",
    [
        "foo\nE1127 00:17:44.1 9980 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 5) \n",
        LOST.read_text(),
    ],
)
def test_exit_of_program_precedes_what_others_say(run: Path, output: str) -> None:
    """Neither the agent nor the ranks that lost their peer know why it left."""
    (run / "logs" / "1-launcher.log").write_text(output)
    message = "rank 7 ended with exit code 5: foo"
    ledger(run, event("start", program="ddp"), event("failure", cause="unknown", rank=7, exit_code=5, message=message))
    verdict = of_run(run)
    assert (verdict.cause.code, verdict.rank, verdict.evidence) == ("unknown", 7, message)


def test_crash_is_told_from_kill(run: Path) -> None:
    """The sender of SIGSEGV and its like is the process itself."""
    means = {}
    for code in (-6, -9, -11):
        ledger(run, event("start"), event("failure", cause="rank_killed", rank=1, exit_code=code, message="x"))
        means[code] = of_run(run).means
    assert means[-6] == means[-11] != means[-9]


def test_guess_of_logs_gives_way_to_recorded_cause(run: Path) -> None:
    """What the supervisor saw is not contradicted by a guess."""
    ledger(run, event("failure", cause="rank_killed", rank=1, message="rank 1 was killed (SIGKILL)"))
    log(run, 0, 0, (CORPUS / "host_oom_killed" / "tr-kill.txt").read_text())
    verdict = of_run(run)
    assert verdict.cause.code == "rank_killed"
    assert "host_oom_killed" not in [found.code for found in verdict.findings]


def test_recorded_ctrl_c_is_no_guess_and_promises_no_checkpoint(run: Path) -> None:
    """Until there is one: then the same command resumes from it."""
    log(run, 0, 0, "Traceback (most recent call last):\nKeyboardInterrupt\n")
    ledger(run, event("start"), event("training", step=0), event("signal", signal="SIGINT"))
    verdict = of_run(run)
    assert (verdict.cause.code, verdict.likely) == ("interrupted", False)
    assert verdict.fix == text_of("verdict.starts_anew")
    checkpoint = run / "checkpoint-5"
    checkpoint.mkdir()
    (checkpoint / "weights").write_bytes(b"1")
    write_manifest(checkpoint, {})
    assert of_run(run).fix == causes()["interrupted"].fix
