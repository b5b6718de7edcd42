"""The promise of `make demo`: a T5 that learns its task under ZeRO-2 on two ranks."""

from __future__ import annotations

import pytest

from tests.integration.conftest import dsrun

pytestmark = pytest.mark.train


@pytest.mark.exhaustive
def test_demo_model_learns_translation(tmp_path):
    """The demo learns to translate numbers."""
    done = dsrun("--zero", "2", "--model", "demo-t5", "--nproc", "2", output=tmp_path / "run").ok()
    assert done.evaluations[-1]["eval_exact_match"] > 90
    assert done.err.count("    -> ") == 5
    assert "dsrun train --zero 2 --model t5-large" in done.err


def test_train_without_dataset_uses_demo_data(tiny, tmp_path):
    """A model without data trains on the demo's, and the output says so."""
    done = dsrun(
        "--zero",
        "2",
        "--model",
        tiny["t5"],
        "--max-steps",
        "1",
        "--max-eval-samples",
        "4",
        "--force",  # the tiny tokenizer knows none of its words
        output=tmp_path / "run",
    )
    assert "using the built-in demo data" in done.ok().err
    assert "20,100 train" in done.err
