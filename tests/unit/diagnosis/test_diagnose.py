"""The verdict over several logs, and over a run folder with its ledger."""

import json
from pathlib import Path
from typing import Any

import pytest

from dsrun.diagnosis.diagnose import of_logs, of_run
from dsrun.errors import UsageError

CORPUS = Path(__file__).parents[2] / "data" / "causes"
LOST = CORPUS / "nccl_network" / "gloo-peer-lost.txt"
OOM = CORPUS / "cuda_oom" / "tr-oom.txt"
CRASH = "Traceback (most recent call last):\nKeyError: 'labels'\n"


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


def test_diagnose_names_root_cause_before_consequences() -> None:
    """The root cause comes first, followed by what it caused."""
    verdict = of_logs({"a.log": LOST, "b.log": OOM})
    assert (verdict.cause.code, verdict.rank, verdict.where) == ("cuda_oom", 1, "b.log:8")
    assert [(found.code, found.level, found.where) for found in verdict.findings] == [
        ("cuda_oom", "error", "b.log:8"),
        ("nccl_network", "info", "a.log:5"),
    ]
    assert verdict.as_dict()["findings"][0]["message"].startswith("GPU memory exhausted: [rank1]: torch.OutOf")


def test_diagnose_healthy_logs_without_findings() -> None:
    """Healthy logs have no findings."""
    verdict = of_logs({"a.log": CORPUS / "none" / "warnings.txt", "b.log": b""})
    assert (verdict.cause.code, verdict.findings, verdict.logs) == ("none", (), ("a.log", "b.log"))


def test_diagnose_shows_unknown_failure() -> None:
    """A failure that no rule knows is shown as it is."""
    verdict = of_logs({"rank-3.attempt-0.log": CRASH.encode()})
    assert (verdict.cause.code, verdict.rank, verdict.evidence) == ("unknown", 3, "KeyError: 'labels'")
    assert verdict.findings[0].level == "error"


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
    assert of_run(run).cause.code == "none"


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
