"""Every log of tests/data/causes tells the cause that its folder is named after, and healthy ones tell none."""

from pathlib import Path

import pytest

from dsrun.causes.classify import classify, first_cause
from dsrun.causes.rules import causes

CORPUS = Path(__file__).parents[2] / "data" / "causes"
LOGS = sorted(path.relative_to(CORPUS) for path in CORPUS.glob("*/*.txt"))
# The supervisor sees these itself; no log tells of them.
SEEN = {"none", "unknown", "rank_hung", "agent_killed", "node_lost", "deterministic_crash"}


def read(name: str) -> str:
    return (CORPUS / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("path", [path for path in LOGS if path.parts[0] not in ("none", "unknown")], ids=str)
def test_a_log_tells_its_cause(path: Path) -> None:
    diagnosis = classify(read(str(path)))
    assert diagnosis is not None
    assert diagnosis.cause == path.parts[0], diagnosis.evidence
    assert diagnosis.evidence == read(str(path)).splitlines()[diagnosis.line - 1].split("\r")[-1].strip()


@pytest.mark.parametrize("path", [path for path in LOGS if path.parts[0] == "none"], ids=str)
def test_a_healthy_log_tells_none(path: Path) -> None:
    assert first_cause({"log": read(str(path))}) is None


def test_every_cause_with_a_sign_is_in_the_corpus() -> None:
    assert {path.parts[0] for path in LOGS} >= set(causes()) - SEEN


def test_the_evidence_has_its_place_its_rank_and_its_time() -> None:
    found = classify(read("cuda_oom/four-ranks-and-their-noise.txt"))
    assert found is not None
    assert (found.line, found.rank, found.weight, found.transient) == (8, 2, "root", False)
    assert found.evidence.startswith("[rank2]: torch.OutOfMemoryError: CUDA out of memory.")
    assert found.time == (((11 * 31 + 21) * 24 + 4) * 60 + 12) * 60 + 7.311


def test_the_launchers_table_names_the_rank() -> None:
    found = classify(read("host_oom_killed/tr-kill.txt"))
    assert found is not None
    assert (found.rank, found.weight) == (1, "guess")


def test_an_exception_that_no_rule_knows_explains_a_lost_connection() -> None:
    log = read("unknown/tr-raise.txt")
    assert "Connection closed by peer" in log
    assert classify(log) is None
    _, found = first_cause({"log": log}) or pytest.fail("nothing")
    assert (found.cause, found.rank, found.evidence) == ("", 1, "[rank1]: KeyError: 'labels'")


def test_among_many_logs_the_cause_beats_what_other_ranks_suffered() -> None:
    lost = read("nccl_network/gloo-peer-lost.txt")
    oom = (
        "2026-11-21 12:14:06,000 ERROR x: rank 1 failed\ntorch.OutOfMemoryError: CUDA out of memory. Tried\n"
    )
    name, found = first_cause({"rank-0": lost, "rank-1": oom, "rank-2": lost}) or pytest.fail("nothing")
    assert (name, found.cause) == ("rank-1", "cuda_oom")


def test_of_two_causes_the_earlier_one_counts() -> None:
    late = "2026-11-21 12:14:06,000 ERROR x\ntorch.OutOfMemoryError: CUDA out of memory. Tried\n"
    early = "2026-11-21 12:14:05,000 ERROR x\nOSError: [Errno 28] No space left on device\n"
    name, found = first_cause({"rank-0": late, "rank-1": early}) or pytest.fail("nothing")
    assert (name, found.cause) == ("rank-1", "disk_full")


def test_an_unknown_exception_is_the_cause_where_the_others_lost_that_rank() -> None:
    lost, crashed = (
        read("nccl_network/gloo-peer-lost.txt"),
        "Traceback (most recent call last):\nKeyError: 'labels'\n",
    )
    name, found = first_cause({"rank-0": lost, "rank-1": crashed}) or pytest.fail("nothing")
    assert (name, found.cause) == ("rank-1", "")


def test_no_logs_tell_nothing() -> None:
    assert first_cause({}) is None


@pytest.mark.parametrize(
    ("code", "cause"),
    [(-9, "rank_killed"), (137, "rank_killed"), (-4, "illegal_instruction"), (-7, "cpu_shm_bus_error")],
)
def test_a_signal_tells_where_the_log_does_not(code: int, cause: str) -> None:
    found = classify("step 3\n", exit_code=code)
    assert found is not None
    assert (found.cause, found.line, found.weight) == (cause, 0, "guess")


def test_an_exit_code_without_a_meaning_tells_nothing() -> None:
    assert classify("step 3\n", exit_code=1) is None


def test_a_log_tells_more_than_a_signal() -> None:
    found = classify(read("host_oom_killed/slurm.txt"), exit_code=-9)
    assert found is not None
    assert found.cause == "host_oom_killed"


def test_a_run_that_ended_with_0_was_healthy_but_for_its_loss() -> None:
    assert classify(read("nccl_network/socket.txt"), exit_code=0) is None
    found = classify(read("nan_loss/to-the-end.txt"), exit_code=0)
    assert found is not None
    assert found.cause == "nan_loss"


def test_a_failure_after_training_is_no_healthy_end() -> None:
    found = classify("{'train_runtime': '12.1'}\nOSError: [Errno 28] No space left on device\n")
    assert found is not None
    assert found.cause == "disk_full"


def test_what_a_traceback_quotes_from_the_source_is_no_sign() -> None:
    quoted = (
        "Traceback (most recent call last):\n"
        '  File "/opt/a.py", line 3, in f\n'
        '    raise OSError("No space left on device")\n'
        '  File "/opt/b.py", line 4, in g\n'
        '    log("CUDA error: out of memory")\n'
        "ValueError: something else\n"
    )
    assert classify(quoted) is None


def test_a_progress_bar_and_a_message_share_a_line() -> None:
    bar = "\r".join(f" {n}%|### | {n}/100 [00:01<00:02, 1.75it/s]" for n in range(100))
    found = classify(bar + "\rtorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB\r" + bar)
    assert found is not None
    assert (found.cause, found.line) == ("cuda_oom", 1)
    assert found.evidence == "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB"


def test_text_that_is_no_utf_8_is_read_all_the_same() -> None:
    found = classify("\udcff\n[Errno 28] No space left on device: '\udcfe'\n")
    assert found is not None
    assert found.cause == "disk_full"


def test_a_finding_says_what_where_and_the_fix() -> None:
    found = classify("x\ntorch.OutOfMemoryError: CUDA out of memory. Tried\n")
    assert found is not None
    finding = found.finding("logs/rank-0.attempt-0.log")
    assert finding.code == "cuda_oom"
    assert finding.level == "error"
    assert finding.where == "logs/rank-0.attempt-0.log:2"
    assert finding.message.startswith("GPU memory exhausted: ")
    assert "--micro-batch-size" in finding.fix
