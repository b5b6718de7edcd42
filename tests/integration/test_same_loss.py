"""One loss curve for one experiment, on whatever it runs: ranks, ZeRO stages and micro batches only cut it up."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from dsrun.runs.records import read_records
from tests.integration.conftest import many_runs

STEPS = 6
GLOBAL_BATCH = 12
# ranks -> micro batches; 12 = micro × ranks × steps, so 1 to 12 accumulation steps are covered
MICRO_BATCHES = {1: (12, 4, 1), 2: (6, 2)}
RELATIVE = 1e-5
# Adam divides a gradient by its own size, so with the usual 1e-8 the rounding of gradients near zero, which depends on
# the processor's kernels, would decide the sign of whole updates.
EPSILON = "1e-6"

pytestmark = pytest.mark.train


def arguments(model, data, stage, micro, output):
    return [
        "--model", model, "--train-file", data["train"], "--zero", str(stage), "--bf16", "false",
        "--global-batch-size", str(GLOBAL_BATCH), "--micro-batch-size", str(micro), "--max-steps", str(STEPS),
        "--learning-rate", "0.02", "--adam-epsilon", EPSILON, "--max-grad-norm", "0.5", "--logging-steps", "1",
        "--save-strategy", "no", "--output", str(output),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def curves(tiny, pairs, tmp_path_factory):
    """Loss and gradient norm of each step, by (model, ranks, stage, micro batch)."""
    scratch = tmp_path_factory.mktemp("curves")
    found = {}
    for ranks, micros in MICRO_BATCHES.items():
        cases = list(product(("t5", "llama"), (ranks,), (0, 1, 2, 3), micros))
        folders = {case: scratch / "-".join(map(str, case)) for case in cases}
        many_runs(
            [arguments(tiny[case[0]], pairs, case[2], case[3], folders[case]) for case in cases],
            ranks=ranks,
            scratch=scratch,
        )
        found |= {case: read_curve(folder) for case, folder in folders.items()}
    return found


def read_curve(folder: Path):
    rows = [row for row in read_records(folder / "metrics.jsonl") if "loss" in row]
    return [row["loss"] for row in rows], [row["grad_norm"] for row in rows]


@pytest.mark.parametrize("model", ["t5", "llama"])
def test_losses_equal_across_world_size_zero_stage_micro_batch(curves, model):
    """Ranks, ZeRO stages and micro batches only cut up the batch: each cut gives the same loss curve."""
    reference = curves[model, 1, 0, 12]
    assert len(reference[0]) == STEPS
    assert reference[0][-1] < 0.95 * reference[0][0], "a loss that does not move would agree with anything"
    wrong = {
        case: (losses, norms)
        for case, (losses, norms) in curves.items()
        if case[0] == model
        and not (
            losses == pytest.approx(reference[0], rel=RELATIVE)
            and norms == pytest.approx(reference[1], rel=10 * RELATIVE)
        )
    }
    assert not wrong, f"reference {reference}"
