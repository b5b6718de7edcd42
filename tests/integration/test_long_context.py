"""Ranks that share rows (--long-context) have the losses of one rank that has them whole."""

from __future__ import annotations

import pytest

from tests.integration.conftest import many_runs, records

STEPS = 4

pytestmark = pytest.mark.train


def arguments(model, data, output, *more):
    return [
        "--model", model, "--train-file", data["train"], "--validation-file", data["validation"], "--bf16", "false",
        "--global-batch-size", "4", "--micro-batch-size", "2", "--max-steps", str(STEPS), "--learning-rate", "0.01",
        "--logging-steps", "1", "--save-strategy", "steps", "--save-steps", "2", "--lr-scheduler-type", "constant", "--output", str(output), *more,
    ]  # fmt: skip


def curve(folder):
    return [*records(folder, "loss"), *records(folder, "grad_norm"), *records(folder, "eval_loss")]


def test_shared_rows_give_losses_of_whole_rows(tiny, pairs, tmp_path):
    """Losses, gradient norms and evaluation of two ranks that share each row, under ZeRO-2 and 3, are those of one rank
    without --long-context, and so are they after a resume."""
    many_runs([arguments(tiny["llama"], pairs, tmp_path / "whole", "--zero", "1")], ranks=1, scratch=tmp_path)
    long = ("--long-context", "64")
    half = arguments(tiny["llama"], pairs, tmp_path / "z3", "--zero", "3", *long)
    half[half.index("--max-steps") + 1] = "2"
    many_runs(
        [
            arguments(tiny["llama"], pairs, tmp_path / "z2", "--zero", "2", *long),
            half,
            arguments(tiny["llama"], pairs, tmp_path / "z3", "--zero", "3", *long),
        ],
        ranks=2,
        scratch=tmp_path,
    )
    whole = curve(tmp_path / "whole")
    assert len(records(tmp_path / "whole", "loss")) == STEPS
    assert curve(tmp_path / "z2") == pytest.approx(whole, rel=1e-4)
    assert curve(tmp_path / "z3") == pytest.approx(whole, rel=1e-4)
