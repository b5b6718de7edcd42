"""Preference losses beside DPO's own, and a reference that moves, on real engines; exact resume of where it was."""

from __future__ import annotations

import shutil

import pytest

from dsrun.runs.records import read_records
from dsrun.train.loss.dpo import METRICS
from dsrun.train.loss.protocol import STATE_FILE
from tests.integration.conftest import many_runs
from tests.integration.test_dpo import SAVED, Case, flags

pytestmark = pytest.mark.train

CASES = [Case(0, 8, ranks=1), Case(0, 4), Case(2, 2), Case(3, 4)]
RESUMED = [(Case(2, 2), Case(2, 2)), (Case(3, 4), Case(3, 4)), (Case(2, 2), Case(3, 4)), (Case(3, 4), Case(0, 4))]
"""The case that is resumed, and as what."""
# The reference has moved once before the checkpoint, and moves once after it.
EXTRA = ["--dpo-loss", "ipo", "--sft-weight", "0.5", "--dpo-beta", "0.5"]
EXTRA += ["--sync-ref-model", "--ref-model-sync-steps", "3", "--ref-model-mixup-alpha", "0.7"]


@pytest.fixture(scope="module")
def runs(tiny, preferences, tmp_path_factory):
    scratch = tmp_path_factory.mktemp("losses")
    whole = {case: scratch / str(case) for case in CASES}
    for ranks in (1, 2):
        argvs = [flags(case, tiny, preferences, folder) for case, folder in whole.items() if case.ranks == ranks]
        many_runs([[*argv, *EXTRA] for argv in argvs], ranks=ranks, scratch=scratch)
    resumed = {pair: scratch / f"{pair[0]}-as-{pair[1]}" for pair in RESUMED}
    for (case, _), folder in resumed.items():
        name = f"checkpoint-{SAVED}"
        shutil.copytree(whole[case] / name, folder / name)
        shutil.copy(whole[case] / "run.json", folder)
    argvs = [flags(after, tiny, preferences, folder) for (_, after), folder in resumed.items()]
    many_runs([[*argv, *EXTRA] for argv in argvs], ranks=2, scratch=scratch)
    return whole, resumed


def logged(folder):
    rows = read_records(folder / "metrics.jsonl")
    return {row["step"]: [row[name] for name in ("loss", "grad_norm", *METRICS)] for row in rows if "loss" in row}


@pytest.mark.parametrize("case", CASES[1:], ids=str)
def test_loss_with_sft_and_moving_reference_equal_on_all_engines(runs, case):
    """Losses, gradients and rewards, whose reference moves under ZeRO-3 shard by shard."""
    expected, found = logged(runs[0][CASES[0]]), logged(runs[0][case])
    assert list(found) == list(expected)
    for step, row in expected.items():
        assert found[step] == pytest.approx(row, rel=1e-3, abs=1e-5), step


@pytest.mark.parametrize("pair", RESUMED, ids=lambda pair: f"{pair[0]}-as-{pair[1]}")
def test_resume_has_the_reference_where_it_was(runs, pair):
    """Also on another ZeRO stage; without its weights from the checkpoint the rewards would be others."""
    whole, resumed = runs
    assert (whole[pair[0]] / f"checkpoint-{SAVED}" / STATE_FILE).is_file()
    expected = {step: row for step, row in logged(whole[pair[0]]).items() if step > SAVED}
    found = {step: row for step, row in logged(resumed[pair]).items() if step > SAVED}
    assert expected
    assert list(found) == list(expected)
    for step, row in expected.items():
        assert found[step] == (row if pair[0] == pair[1] else pytest.approx(row, rel=1e-3, abs=1e-5)), step
