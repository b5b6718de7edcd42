"""Which global batch a resumed run has where its flags do not fix one."""

from __future__ import annotations

import pytest

from dsrun.recipe.resolve import resolve
from dsrun.train.base.distributed import DistributedWorld
from dsrun.train.decide_plan import _batch

ALONE = DistributedWorld(rank=0, size=1, local_rank=0, local_size=1, device="cpu")


@pytest.mark.parametrize(
    ("flags", "saved", "batch"),
    [
        ([], None, "8 = 8 × 1 GPU × 1 step"),
        ([], 8, "8 = 8 × 1 GPU × 1 step"),
        ([], 32, "32 = 8 × 1 GPU × 4 steps"),
        (["--micro-batch-size", "4"], 32, "32 = 4 × 1 GPU × 8 steps"),
        (["--per_device_train_batch_size", "4"], 32, "32 = 4 × 1 GPU × 8 steps"),
        (["--micro-batch-size", "auto"], 32, "32 = 32 × 1 GPU × 1 step"),
        # What cannot be kept, and what the flags say themselves.
        (["--micro-batch-size", "5"], 32, "5 = 5 × 1 GPU × 1 step"),
        (["--global-batch-size", "16"], 32, "16 = 8 × 1 GPU × 2 steps"),
        (["--gradient_accumulation_steps", "2"], 32, "16 = 8 × 1 GPU × 2 steps"),
    ],
)
def test_global_batch_of_checkpoint_kept_on_resume(flags, saved, batch, tmp_path):
    """The global batch of a checkpoint stays unless flags fix another."""
    said = []
    found = _batch(resolve(["--model", "x", *flags], tmp_path), ALONE, saved, said.append)
    assert str(found) == batch
    assert said == (["the global batch stays 32, as it was when the checkpoint was saved"] * (found.global_batch == 32))
