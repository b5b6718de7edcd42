"""The verdict over several logs."""

from pathlib import Path

import pytest

from dsrun.diagnosis.diagnose import _FLAG, of_logs
from dsrun.diagnosis.log.reading import NotText

CORPUS = Path(__file__).parents[2] / "data" / "causes"
LOST = CORPUS / "nccl_network" / "gloo-peer-lost.txt"
OOM = CORPUS / "cuda_oom" / "tr-oom.txt"
CRASH = "Traceback (most recent call last):\nKeyError: 'labels'\n"


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
    verdict = of_logs({"a.log": CORPUS / "none" / "tr-ok.txt", "b.log": b""})
    assert (verdict.cause.code, verdict.findings, verdict.logs) == ("none", (), ("a.log", "b.log"))


def test_log_without_failure_steps_and_end_says_so() -> None:
    """It may end too early: that is not called healthy, unless the run is known to have ended well."""
    log = {"a.log": CORPUS / "none" / "warnings.txt"}
    assert (of_logs(log).cause.code, of_logs(log).failed) == ("no_end", False)
    assert of_logs(log, exit_code=0).cause.code == "none"


def test_diagnose_shows_unknown_failure() -> None:
    """A failure that no rule knows is shown as it is."""
    verdict = of_logs({"rank-3.attempt-0.log": CRASH.encode()})
    assert (verdict.cause.general, verdict.rank, verdict.evidence) == (True, 3, "KeyError: 'labels'")
    assert verdict.findings[0].level == "error"


def test_guess_is_called_likely() -> None:
    """A guess is told apart from what is certain."""
    verdict = of_logs({"a.log": CORPUS / "host_oom_killed" / "tr-kill.txt"})
    assert (verdict.cause.code, verdict.likely) == ("host_oom_killed", True)
    assert verdict.findings[0].message.startswith("host memory exhausted (likely): ")


def test_exception_explains_killed_task_of_srun() -> None:
    """Tasks that srun kills because another one failed are not out of memory."""
    srun = "srun: error: n1: task 1: Exited with exit code 1\nsrun: error: n1: task 0: Killed\n"
    log = f"0: {{'loss': 1.0}}\n{CRASH}{srun}"
    verdict = of_logs({"slurm-7.out": log.encode()})
    assert (verdict.cause.code, verdict.evidence) == ("data_value", "KeyError: 'labels'")


def test_several_causes_of_one_log_are_all_shown() -> None:
    """A merged log's other causes stand beside the first one."""
    log = "[rank1]: OSError: [Errno 28] No space left on device\n[rank0]: torch.OutOfMemoryError: CUDA out of memory.\n"
    verdict = of_logs({"a.log": log.encode()})
    assert [(found.code, found.level) for found in verdict.findings] == [("disk_full", "error"), ("cuda_oom", "info")]


def test_evidence_of_long_line_surrounds_match() -> None:
    """Of a line of thousands of characters the place that matched is shown."""
    line = "x" * 2000 + " RuntimeError: CUDA error: out of memory " + "y" * 2000
    verdict = of_logs({"a.log": line.encode()})
    assert "CUDA error: out of memory" in verdict.evidence
    assert len(verdict.evidence) <= 302


def test_flags_of_dsrun_for_logs_of_other_launchers() -> None:
    """The advice for another launcher's log is general, with dsrun's flags beside it."""
    oom = b"torch.OutOfMemoryError: CUDA out of memory. Tried\n"
    assert of_logs({"a.log": oom}).fix.endswith(
        "(with dsrun train: --micro-batch-size, --gradient-checkpointing, --zero)"
    )
    assert of_logs({"a.log": b"+ dsrun train --model t5\n" + oom}).fix.startswith("halve --micro-batch-size")


def test_single_nan_with_finite_losses_after_it() -> None:
    """Weights that give a finite loss again are not lost; the place is shown all the same."""
    log = "{'loss': nan, 'grad_norm': 1.0}\n" + "{'loss': 2.0, 'grad_norm': 1.0}\n" * 9
    verdict = of_logs({"a.log": log.encode()})
    assert (verdict.cause.code, verdict.failed) == ("none", False)
    assert [(found.code, found.level, found.where) for found in verdict.findings] == [
        ("nan_loss", "warning", "a.log:1")
    ]
    zeros = "{'loss': nan}\n" + "{'loss': 0.0, 'learning_rate': 1e-5}\n" * 30
    assert of_logs({"a.log": zeros.encode()}).cause.code == "nan_loss"


def test_empty_logs_are_refused() -> None:
    """Nothing can be said of an empty log; beside another one it does not matter."""
    with pytest.raises(NotText, match=r"a\.log is empty"):
        of_logs({"a.log": b""})
    assert of_logs({"a.log": b"", "b.log": b"fine\n"}).lines == 1


@pytest.mark.parametrize(
    ("numbers", "rank"),
    [({0: 7755, 1: 7753, 2: 7755}, 1), ({0: 9, 1: 9, 3: 9}, 2), ({0: 9, 1: 9}, None), ({4: 9}, None)],
)
def test_timeout_names_rank_that_is_behind(numbers: dict[int, int], rank: int | None) -> None:
    """Of the ranks that wait the one that has issued fewer operations is behind, or the one that says nothing."""
    logs = {
        f"rank-{reporter}.attempt-0.log": (
            f"[rank{reporter}]:[E1206 18:44:12.7 P.cpp:1664] [PG 1 Rank {reporter}] Exception (either an error or "
            f"timeout) detected by watchdog at work: 7753, last enqueued NCCL work: {number}, last completed: 2.\n"
        ).encode()
        for reporter, number in numbers.items()
    }
    verdict = of_logs(logs)
    assert (verdict.cause.code, verdict.rank) == ("nccl_timeout", rank)


def test_more_processes_than_world_size_are_told() -> None:
    """A store that counts more workers than the world size is told from one that waits for them."""
    text = "RuntimeError: Timed out in store based barrier on rank: 3 (world_size=8, worker_count={})"
    many, few = (of_logs({"a.log": text.format(count).encode()}) for count in (24, 4))
    assert many.means.startswith("more processes came than the world size")
    assert few.means.startswith("a node or rank never came")


def test_flags_of_other_programs_are_not_those_of_train() -> None:
    """Of another launcher's log: `docker run --shm-size=8g`, `sbatch --mem`, and bf16 as a whole word."""
    logs = {
        "cpu_shm_bus_error": (b"ERROR: Unexpected bus error encountered in worker.", {"--dataloader-num-workers"}),
        "host_oom_killed": (b"srun: error: gpu01: task 3: Out Of Memory", {"--micro-batch-size"}),
    }
    for code, (log, flags) in logs.items():
        verdict = of_logs({"other.log": log})
        assert verdict.cause.code == code
        assert verdict.fix.values["flags"].split(", ") == sorted(flags)
    assert _FLAG.findall("docker run --shm-size=8g, sbatch --mem; --bf16") == ["", "", "--bf16"]
