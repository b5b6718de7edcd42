"""No false alarm on runs that were trained rightly: recorded ones of dsrun, a Trainer, TRL and others."""

from pathlib import Path

import pytest

from dsrun.audit.evidence import evidence_of, runs_in
from dsrun.audit.judge import audited

TESTS = Path(__file__).parents[2]
RECORDED = sorted((TESTS / "data" / "audit" / "healthy").iterdir())
LOGS = [
    each
    for each in sorted((TESTS / "data" / "trainer_logs").glob("*.txt"))
    if each.name != "huggingface-4.txt"  # its loss is NaN at a step
]


@pytest.mark.parametrize("run", [*RECORDED, *LOGS], ids=lambda run: run.name)
def test_healthy_run_is_not_affected(run: Path) -> None:
    assert runs_in(run) == [run]
    results = audited(evidence_of(run))
    assert [each.check.code for each in results if each.status in ("fail", "warn")] == []
    assert [each.check.code for each in results if each.status == "pass"] != []


def test_there_are_fifteen() -> None:
    assert len(RECORDED) + len(LOGS) >= 15


def test_a_run_of_dsrun_leaves_nothing_open() -> None:
    """Its folder tells all that facts ask."""
    results = audited(evidence_of(TESTS / "data" / "audit" / "healthy" / "dsrun-t5-zero2"))
    assert {each.status for each in results} == {"pass", "skip"}
