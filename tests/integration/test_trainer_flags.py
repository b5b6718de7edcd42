"""What the stock Trainer offers and does not manage by itself: schedules under ZeRO, saving the best alone."""

from __future__ import annotations

import pytest

from tests.integration.conftest import SHORT, many_runs, records

pytestmark = pytest.mark.train

STEPS, RATE, LOWEST = 4, 1e-2, 1e-3
ENDS_AT_A_RATE = {
    "polynomial": ["--lr-scheduler-kwargs", f'{{"lr_end": {LOWEST}}}'],
    "cosine_with_min_lr": ["--lr-scheduler-kwargs", f'{{"min_lr": {LOWEST}}}'],
}


def test_lr_scheduler_min_lr_under_every_zero_stage(tiny, pairs, tmp_path):
    """They read the first rate from the optimizer's defaults, which no optimizer of ZeRO has."""
    runs = {
        (name, stage): [
            "--model", tiny["llama"], "--zero", stage, "--train-file", pairs["train"], *SHORT,
            "--max-steps", str(STEPS), "--learning-rate", str(RATE), "--lr-scheduler-type", name, *more,
            "--output", str(tmp_path / name / stage),
        ]
        for name, more in ENDS_AT_A_RATE.items() for stage in ("0", "1", "2", "3")
    }  # fmt: skip
    many_runs(list(runs.values()), ranks=2, scratch=tmp_path)
    rates = {run: records(tmp_path.joinpath(*run), "lr") for run in runs}
    for name in ENDS_AT_A_RATE:
        plain = rates[name, "0"]
        assert plain[0] == pytest.approx(RATE)
        assert sorted(plain, reverse=True) == plain
        assert LOWEST < plain[-1] < RATE / 2
        for stage in ("1", "2", "3"):
            assert rates[name, stage] == pytest.approx(plain), (name, stage)


def test_save_strategy_best(tiny, pairs, tmp_path):
    """--save-strategy best by itself: each better loss is saved, and the end of training is the model."""
    flags = [
        "--model", tiny["llama"], "--train-file", pairs["train"], "--validation-file", pairs["validation"], *SHORT,
        "--save-strategy", "best", "--eval-steps", "1", "--max-steps", "3", "--learning-rate", "1e-3",
        "--output", str(tmp_path / "run"),
    ]  # fmt: skip
    many_runs([flags], ranks=1, scratch=tmp_path)
    losses = records(tmp_path / "run", "eval_loss")
    better = [step for step in range(1, 4) if losses[step - 1] == min(losses[:step])]
    saved = sorted(int(each.name.removeprefix("checkpoint-")) for each in (tmp_path / "run").glob("checkpoint-*"))
    assert saved == sorted({*better, 3})
