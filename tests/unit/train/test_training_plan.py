"""How a plan names the parallelism of its run."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsrun.recipe.batch import BatchPlan
from dsrun.recipe.resolve import resolve
from dsrun.train.base.distributed import DistributedWorld
from dsrun.train.base.plan import TrainingPlan


@pytest.mark.parametrize(
    ("phase", "stage", "flags", "parallel"),
    [
        ("train", None, [], "plain DDP (ZeRO 0) on 8 GPUs"),
        ("train", 2, [], "ZeRO-2 on 8 GPUs"),
        ("evaluate", None, [], "8 GPUs"),
        ("evaluate", 2, [], "8 GPUs"),
        ("evaluate", 3, [], "ZeRO-3 on 8 GPUs"),
        ("train", 3, ["--offload", "cpu"], "ZeRO-3, offloaded to cpu on 8 GPUs"),
        ("train", 3, ["--offload", "optimizer"], "ZeRO-3, optimizer offloaded to cpu on 8 GPUs"),
    ],
)
def test_parallelism_is_what_the_phases_use(
    tmp_path: Path, phase: str, stage: int | None, flags: list[str], parallel: str
) -> None:
    plan = TrainingPlan(
        recipe=resolve(["--model", "org/base", *flags], tmp_path),
        title="base",
        world=DistributedWorld(0, 8, 0, 8, "cuda"),
        config=None,
        task="causal-lm",
        batch=BatchPlan(global_batch=64, micro_batch=4, world_size=8, accumulation=2),
        precision="bf16",
        deepspeed=None if stage is None else {"zero_optimization": {"stage": stage}},
        phases=frozenset({phase}),
    )
    assert plan.parallel == parallel
