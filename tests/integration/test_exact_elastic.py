"""Two ranks save, one resumes: every sample once, the same steps, and losses that only differ by rounding."""

from __future__ import annotations

import shutil

import pytest

from tests.integration.conftest import many_runs, without
from tests.integration.test_exact_resume import SAMPLES, STEPS, Case, curve, documents, flags
from tests.sample_ledger import ledgers, not_once, seen, steps

__all__ = ["documents"]

pytestmark = pytest.mark.train

CASES = [
    Case(2, "t5", "plain", 2, 4),
    Case(1, "llama", "workers", 1, 8),
    Case(3, "llama", "stream-blocks", 1, 4),
    Case(2, "t5", "stream-worker", 2, 8),
]


@pytest.fixture(scope="module")
def folders(tiny, pairs, documents, tmp_path_factory):
    """For each case the folders of the whole run on two ranks and of the one that went on on one."""
    scratch = tmp_path_factory.mktemp("exact-elastic")
    made = {case: (scratch / f"{case}" / "two", scratch / f"{case}" / "one") for case in CASES}
    # Without dropout: its masks are drawn rank by rank.
    lines = {
        case: [*flags(case, tiny, pairs, documents), "--model-config", f"{DROPOUT[case.model]}=0.0"] for case in CASES
    }
    many_runs([[*lines[case], "--output", str(two)] for case, (two, _) in made.items()], ranks=2, scratch=scratch)
    for case, (two, one) in made.items():
        one.mkdir()
        shutil.copytree(two / f"checkpoint-{case.after}", one / f"checkpoint-{case.after}")
        for file in ("run.json", "samples-rank-0.jsonl", "samples-rank-1.jsonl"):
            shutil.copy(two / file, one)
    again = {case: without(lines[case], "--gradient-accumulation-steps") for case in CASES}
    many_runs(
        [[*again[case], "--micro-batch-size", "2", "--output", str(one)] for case, (_, one) in made.items()],
        ranks=1,
        scratch=scratch,
    )
    return made


DROPOUT = {"t5": "dropout_rate", "llama": "attention_dropout"}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_elastic_resume_sees_every_sample_once(folders, case):
    """Every sample is seen once, by two ranks and then by one."""
    two, one = (ledgers(folder) for folder in folders[case])
    assert not_once(two, samples=SAMPLES) == []
    assert not_once(one, samples=SAMPLES) == []
    assert seen(one) == seen(two)
    assert [step.ranks for step in steps(one).values()] == [2] * case.after + [1] * (STEPS - case.after)
    for step, taken in steps(one).items():
        assert set(taken.ids) == set(steps(two)[step].ids), f"step {step}"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_elastic_resume_losses_equal_those_of_two_ranks(folders, case):
    expected, found = (curve(folder) for folder in folders[case])
    assert list(found) == list(range(case.after + 1, STEPS + 1))
    for step, (loss, norm, rate, tokens) in found.items():
        assert loss == pytest.approx(expected[step][0], rel=1e-5), f"step {step}"
        assert norm == pytest.approx(expected[step][1], rel=1e-4), f"step {step}"
        assert (rate, tokens) == expected[step][2:]
