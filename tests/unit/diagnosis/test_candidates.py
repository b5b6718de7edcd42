"""What a verdict was chosen from, and why each line counts or not."""

import pytest

from dsrun.diagnosis.candidates import MOST, Candidate, reason
from dsrun.diagnosis.diagnose import RunVerdict, of_logs
from dsrun.findings.finding import text_of

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
STEP = "{'loss': 1.5, 'epoch': 0.1}\n"
LOST = "RuntimeError: Connection closed by peer [127.0.0.1]:54997\n"


def verdict_on(**logs: str) -> RunVerdict:
    return of_logs({name: text.encode() for name, text in logs.items()})


def told(verdict: RunVerdict) -> list[tuple[str, int, str, str, str]]:
    return [(each.log, each.line, each.cause, each.weight, each.standing) for each in verdict.candidates]


def keys(verdict: RunVerdict) -> list[str]:
    """Which text of the table gives each candidate's reason."""
    steps = {text_of(f"standing.{name}"): name for name in STANDINGS}
    return [steps.get(text := reason(each, verdict.candidates), text.template) for each in verdict.candidates]


STANDINGS = (
    "only", "heavier", "earliest", "first_rank", "beside", "lighter", "effect", "same_line", "earlier_attempt",
    "survived",
)  # fmt: skip


def test_cause_of_one_log_explains_consequence_of_another() -> None:
    """Of many logs one line is first; the log of a lost peer counts beside it, and the rest not at all."""
    verdict = verdict_on(a=LOST, b=OOM)
    assert told(verdict) == [
        ("b", 1, "cuda_oom", "root", "first"),
        ("a", 1, "nccl_network", "consequence", "beside"),
        ("a", 1, "unknown", "unknown", "same_line"),
        ("b", 1, "unknown", "unknown", "same_line"),
    ]
    assert keys(verdict) == ["heavier", "lighter", "same_line", "same_line"]
    assert [(each.log, each.lines, each.size) for each in verdict.read] == [("a", 1, len(LOST)), ("b", 1, len(OOM))]


def test_earliest_of_equal_lines_is_first() -> None:
    verdict = verdict_on(a="OSError: [Errno 28] No space left on device\n" + OOM)
    counting = [each for each in verdict.candidates if each.weight == "root"]
    assert [(each.line, each.standing) for each in counting] == [(1, "first"), (2, "beside")]
    assert keys(verdict)[:2] == ["earliest", "beside"]


def test_lone_line_is_first_as_none_else_counts() -> None:
    assert keys(verdict_on(a="KeyError: 'x'\n")) == ["only"]


def test_line_of_first_failed_rank_comes_before_earlier_ones() -> None:
    """The launcher's table names the rank, so that the earlier exception of another one comes after it."""
    table = (
        "Root Cause (first observed failure):\n[0]:\n  time : x\n  rank      : 1 (local_rank: 1)\n"
        "  exitcode  : 1 (pid: 7)\n"
    )
    verdict = verdict_on(a="[rank0]: KeyError: 'early'\n[rank1]: KeyError: 'labels'\n" + table)
    assert [(each.line, each.rank) for each in verdict.candidates[:2]] == [(2, 1), (1, 0)]
    assert keys(verdict)[:2] == ["first_rank", "beside"]


@pytest.mark.parametrize(
    ("after", "reasons"),
    [
        (STEP * 12, {"no: the run went on, {steps} after it"}),
        ("{'train_runtime': 12.0}\n", {"survived"}),
        ("worker group failed, will restart worker group\nValueError: odd\n", {"only", "earlier_attempt"}),
    ],
    ids=["steps", "end", "attempt"],
)
def test_line_that_does_not_count_says_why(after: str, reasons: set[str]) -> None:
    assert set(keys(verdict_on(a=STEP + OOM + after))) == reasons


def test_steps_after_line_are_counted() -> None:
    found = verdict_on(a=OOM + STEP * 12).candidates
    assert {(each.steps, each.end) for each in found} == {(12, False)}
    assert "12 steps" in reason(found[0], found)


def test_candidate_has_rank_of_its_log_time_and_attempt() -> None:
    log = "2026-11-21 12:14:06,000 ERROR x\n(restart 1)\n" + OOM
    found = of_logs({"logs/rank-3.attempt-1.log": log.encode()}).candidates[0]
    assert (found.rank, found.time, found.attempt) == (3, 1795263246.0, 1)


def test_several_signs_of_a_cause_in_a_line_are_one_candidate() -> None:
    found = [each for each in verdict_on(a=OOM).candidates if each.cause == "cuda_oom"]
    assert len(found) == 1


def test_candidates_are_bounded() -> None:
    """Of many logs the first candidates are kept."""
    verdict = verdict_on(**{f"rank{rank}": OOM for rank in range(MOST)})
    assert len(verdict.candidates) == MOST
    assert {each.standing for each in verdict.candidates} == {"first", "beside"}


def test_standing_that_has_no_reason_of_its_own_has_a_text() -> None:
    """Every standing that a hit can have has its words."""
    base = verdict_on(a=OOM).candidates[0]
    for standing in ("effect", "same_line", "earlier_attempt", "survived"):
        each: Candidate = base._replace(standing=standing)  # type: ignore[arg-type]
        assert reason(each, (base, each)) == text_of(f"standing.{standing}")
