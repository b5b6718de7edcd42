"""Which global batch a resumed run has where its flags do not fix one."""

from __future__ import annotations

import pytest
from transformers import LlamaConfig

from dsrun.errors import UsageError
from dsrun.recipe.resolve import resolve
from dsrun.train.base.distributed import DistributedWorld
from dsrun.train.base.plan import Given
from dsrun.train.decide_plan import _batch, decide_plan

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
    found = _batch(resolve(["--model", "x", *flags], tmp_path), ALONE, 1, saved, said.append)
    assert str(found) == batch
    assert said == (["the global batch stays 32, as it was when the checkpoint was saved"] * (found.global_batch == 32))


def plan_of(flags, folder):
    config = LlamaConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
    recipe = resolve(["--model", "x", "--bf16", "--micro-batch-size", "1", *flags], folder)
    return decide_plan(recipe, "x", ALONE, notify=lambda _: None, given=Given(config=config))


@pytest.mark.parametrize(
    ("flags", "dtype"),
    [
        (["--global-batch-size", "8"], "fp32"),
        (["--global-batch-size", "7"], None),
        # What `dsrun config` says with so many steps holds here, too.
        (["--global-batch-size", "8", "--set", "data_types.grad_accum_dtype=bf16"], "bf16"),
        (["--global-batch-size", "8", "--preset", "conservative"], None),
        (["--global-batch-size", "8", "--grad-accum-dtype", "model"], None),
        (["--global-batch-size", "8", "--optim", "muon"], None),
    ],
)
def test_sums_are_those_of_config_with_as_many_steps(flags, dtype, tmp_path):
    config = plan_of(["--zero", "2", *flags], tmp_path).deepspeed
    assert config.get("data_types", {}).get("grad_accum_dtype") == dtype
    assert config["gradient_accumulation_steps"] == "auto"


def test_zenflow_is_refused_with_accumulation_and_its_fix_works(tmp_path):
    flow = ["--zero", "2", "--offload", "cpu", "--zenflow"]
    with pytest.raises(UsageError, match="over 4 steps") as refused:
        plan_of([*flow, "--global-batch-size", "4"], tmp_path)
    assert "--global-batch-size 1," in refused.value.fix
    assert plan_of([*flow, "--global-batch-size", "1"], tmp_path).batch.accumulation == 1
