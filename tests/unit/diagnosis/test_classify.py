"""Every log of tests/data/causes has the cause that its folder is named after, and healthy ones have none."""

import calendar
import tomllib
from pathlib import Path

import pytest

from dsrun.diagnosis.classify import Diagnosis, classify, diagnoses, root, scan_log
from dsrun.diagnosis.diagnose import of_logs
from dsrun.diagnosis.log.reading import read_log
from dsrun.diagnosis.rules import causes

CORPUS = Path(__file__).parents[2] / "data" / "causes"
LINES = tomllib.loads((CORPUS / "lines.toml").read_text(encoding="utf-8"))
ALSO = tomllib.loads((CORPUS / "also.toml").read_text(encoding="utf-8"))
LOGS = sorted(path.relative_to(CORPUS) for path in CORPUS.glob("*/*.txt"))
# The supervisor sees these itself; no log tells of them.
SEEN = {
    "none", "no_end", "unknown", "rank_hung", "agent_killed", "node_lost", "deterministic_crash", "run_killed",
    "running", "running_silent", "process_unkillable",
}  # fmt: skip
MESSAGES = [
    tuple(line.split(" | ", 1))
    for line in (CORPUS / "messages.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]


def read(name: str) -> str:
    """A log of the corpus as `dsrun diagnose` reads it, whatever its encoding."""
    return "".join(data[:limit].decode() for data, limit in read_log(CORPUS / name, name))


@pytest.mark.parametrize("path", [path for path in LOGS if path.parts[0] != "none"], ids=str)
def test_corpus_log_has_its_cause(path: Path) -> None:
    """Each log of the corpus has the cause that its folder is named after, or another that an engineer may name, by the
    line that decides."""
    verdict = of_logs({str(path): CORPUS / path})
    assert verdict.cause.code in (path.parts[0], *ALSO.get(path.as_posix(), ())), verdict.evidence
    if not verdict.evidence.startswith("exit code"):
        line = read(str(path)).split("\n")[int(verdict.where.rpartition(":")[2]) - 1]
        assert verdict.evidence.strip("…")[:12] in line
    told = LINES.get(path.as_posix(), "")
    shown = (verdict.evidence, *(each.text for each in verdict.excerpt))
    assert any(told in text for text in shown), shown


def first_cause(logs: dict[str, str]) -> tuple[str, Diagnosis] | None:
    """The root cause among the logs of many ranks, with the name of its log."""
    found = {name: why for name, text in logs.items() if (why := diagnoses(scan_log(text.encode(), name)))}
    name = root(found)
    return None if name is None else (name, found[name][0])


@pytest.mark.parametrize("path", [path for path in LOGS if path.parts[0] == "none"], ids=str)
def test_classify_healthy_log_without_cause(path: Path) -> None:
    """A healthy log has no cause."""
    assert first_cause({"log": read(str(path))}) is None


def test_log_corpus_covers_every_cause_with_signs() -> None:
    """Every cause with a sign has a log in the corpus."""
    assert {path.parts[0] for path in LOGS} | {cause for cause, _ in MESSAGES} >= set(causes()) - SEEN


@pytest.mark.parametrize(("cause", "message"), MESSAGES)
def test_message_has_cause(cause: str, message: str) -> None:
    """Each message of the list has its cause, alone in a log."""
    log = message.replace("\\n", "\n").replace("\\t", "\t") + "\n"
    found = first_cause({"log": log})
    assert (found[1].cause.code if found else "none") == cause, found


def test_classify_evidence_has_line_rank_and_time() -> None:
    """The evidence has its line, its rank and its time."""
    found = classify(read("cuda_oom/four-ranks-and-their-noise.txt"))
    assert found is not None
    assert (found.line, found.rank, found.weight, found.cause.transient) == (8, 2, "root", False)
    assert found.evidence.startswith("[rank2]: torch.OutOfMemoryError: CUDA out of memory.")
    assert found.time == calendar.timegm((2026, 11, 21, 4, 12, 7)) + 0.311


def test_classify_rank_from_launcher_table() -> None:
    """The launcher's table names the rank."""
    found = classify(read("host_oom_killed/tr-kill.txt"))
    assert found is not None
    assert (found.rank, found.weight) == (1, "guess")


def test_unknown_exception_explains_lost_connection() -> None:
    """An exception that no rule knows explains a lost connection."""
    log = read("own_code/tr-raise.txt")
    assert "Connection closed by peer" in log
    assert classify(log) is None
    _, found = first_cause({"log": log}) or pytest.fail("nothing")
    assert (found.cause.general, found.rank, found.evidence) == (True, 1, "[rank1]: KeyError: 'labels'")


def test_root_cause_in_many_logs_beats_consequences() -> None:
    """Among many logs the cause outweighs what other ranks suffered."""
    lost = read("nccl_network/gloo-peer-lost.txt")
    oom = "2026-11-21 12:14:06,000 ERROR x: rank 1 failed\ntorch.OutOfMemoryError: CUDA out of memory. Tried\n"
    name, found = first_cause({"rank-0": lost, "rank-1": oom, "rank-2": lost}) or pytest.fail("nothing")
    assert (name, found.cause.code) == ("rank-1", "cuda_oom")


def test_earlier_of_two_causes_counts() -> None:
    """Of two causes the earlier one counts."""
    late = "2026-11-21 12:14:06,000 ERROR x\ntorch.OutOfMemoryError: CUDA out of memory. Tried\n"
    early = "2026-11-21 12:14:05,000 ERROR x\nOSError: [Errno 28] No space left on device\n"
    name, found = first_cause({"rank-0": late, "rank-1": early}) or pytest.fail("nothing")
    assert (name, found.cause.code) == ("rank-1", "disk_full")


def test_unknown_exception_of_lost_rank_is_root_cause() -> None:
    """An unknown exception is the cause if the other ranks lost that rank."""
    lost, crashed = (
        read("nccl_network/gloo-peer-lost.txt"),
        "Traceback (most recent call last):\nKeyError: 'labels'\n",
    )
    name, found = first_cause({"rank-0": lost, "rank-1": crashed}) or pytest.fail("nothing")
    assert (name, found.evidence) == ("rank-1", "KeyError: 'labels'")


def test_root_cause_of_no_logs_is_none() -> None:
    """Without logs there is no cause."""
    assert first_cause({}) is None


@pytest.mark.parametrize(
    ("code", "cause"),
    [(-9, "rank_killed"), (137, "rank_killed"), (-4, "illegal_instruction"), (-7, "cpu_shm_bus_error")],
)
def test_classify_exit_signal_without_evidence_in_log(code: int, cause: str) -> None:
    """The signal of the exit code counts where the log has no evidence."""
    found = classify("step 3\n", exit_code=code)
    assert found is not None
    assert (found.cause.code, found.line, found.weight) == (cause, 0, "guess")


def test_classify_plain_exit_code_without_cause() -> None:
    """An exit code without a meaning has no cause."""
    assert classify("step 3\n", exit_code=1) is None


def test_classify_prefers_log_to_exit_signal() -> None:
    """Evidence in the log outweighs the signal."""
    found = classify(read("host_oom_killed/slurm.txt"), exit_code=-9)
    assert found is not None
    assert found.cause.code == "host_oom_killed"


def test_classify_exit_code_0_is_healthy_except_nan_loss() -> None:
    """A run that ended with 0 was healthy, unless its loss became NaN."""
    assert classify(read("nccl_network/socket.txt"), exit_code=0) is None
    found = classify(read("nan_loss/to-the-end.txt"), exit_code=0)
    assert found is not None
    assert found.cause.code == "nan_loss"


def test_classify_failure_after_training_end() -> None:
    """A failure after the end of training is not a healthy end."""
    found = classify("{'train_runtime': '12.1'}\nOSError: [Errno 28] No space left on device\n")
    assert found is not None
    assert found.cause.code == "disk_full"


def test_classify_ignores_source_lines_of_traceback() -> None:
    """Source lines quoted in a traceback are no evidence."""
    quoted = (
        "Traceback (most recent call last):\n"
        '  File "/opt/a.py", line 3, in f\n'
        '    raise OSError("No space left on device")\n'
        '  File "/opt/b.py", line 4, in g\n'
        '    log("CUDA error: out of memory")\n'
        "ValueError: something else\n"
    )
    assert classify(quoted) is None


def test_classify_message_on_progress_bar_line() -> None:
    """A message is found on a line that it shares with a progress bar."""
    bar = "\r".join(f" {n}%|### | {n}/100 [00:01<00:02, 1.75it/s]" for n in range(100))
    found = classify(bar + "\rtorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB\r" + bar)
    assert found is not None
    assert (found.cause.code, found.line) == ("cuda_oom", 1)
    assert found.evidence == "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB"


def test_classify_log_with_invalid_utf8() -> None:
    """Text that is not UTF-8 is classified all the same."""
    found = classify("\udcff\n[Errno 28] No space left on device: '\udcfe'\n")
    assert found is not None
    assert found.cause.code == "disk_full"
