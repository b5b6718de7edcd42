"""`bf16_sums CASES OUT`, on two ranks: for each case (stage, offload, steps), how far a bf16 sum is off."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.utils import logger, safe_get_full_grad

from dsrun.train.base.distributed import destroy_process_group, init_process_group, world_from_env
from dsrun.train.loop.engine import prepare_ops
from tests.integration.as_rank import run_to_the_end

WIDTH, SAMPLES = 256, 4
OFFLOAD = {"offload_optimizer": {"device": "cpu", "pin_memory": False}}


def summed(stage: int, offload: bool, steps: int, dtype: str | None, rank: int) -> torch.Tensor:
    """The averaged gradient before the step."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2)]
    model = torch.nn.Sequential(layers[0], torch.nn.Tanh(), layers[1])
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": SAMPLES,
        "gradient_accumulation_steps": steps,
        "zero_optimization": {"stage": stage} | (OFFLOAD if offload else {}),
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": not offload}},
        "data_types": {"grad_accum_dtype": dtype},
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    batches = torch.Generator().manual_seed(1 + rank)
    target = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(7)) / 16
    for step in range(steps):
        inputs = torch.randn(SAMPLES, WIDTH, generator=batches)
        loss = ((engine(inputs.bfloat16()).float() - torch.tanh(inputs @ target)) ** 2).mean() * 100
        engine.backward(loss)
        if step == steps - 1:
            found = torch.cat([safe_get_full_grad(each).float().flatten() for each in model.parameters()])
        engine.step()
    engine.destroy()
    return found


def main(cases: str, out: str) -> None:
    logger.setLevel("ERROR")
    world = world_from_env(use_cpu=True)
    prepare_ops({"zero_optimization": OFFLOAD, "optimizer": {"type": "AdamW"}}, world, notify=lambda _: None)
    init_process_group(world, deepspeed=True)
    errors = []
    for case in json.loads(Path(cases).read_text()):
        short, exact = (summed(*case, dtype, world.rank) for dtype in (None, "fp32"))
        errors.append(float((short - exact).norm() / exact.norm()))
    Path(f"{out}-{world.rank}").write_text(json.dumps(errors))
    destroy_process_group()


if __name__ == "__main__":
    run_to_the_end(main, *sys.argv[1:])
