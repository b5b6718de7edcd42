"""`lint_engines CONFIGS ANSWERS`: for every config of a JSON file, whether a real engine takes a step with it."""

from __future__ import annotations

import json
import logging
import math
import sys
from pathlib import Path

from tests.integration.as_rank import run_to_the_end


def prepare(config: dict) -> None:
    """For a process, and all that it forks: load what engines of DeepSpeed need that are configured so."""
    import deepspeed  # noqa: F401

    from dsrun.train.base.distributed import world_from_env
    from dsrun.train.loop.engine import prepare_ops

    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    # Without it DeepSpeed would compile its collectives through shared memory first: a minute.
    prepare_ops(config, world_from_env(use_cpu=True), notify=print)


def verdict(config: dict) -> str:
    """An empty text, or the error that the config ends in within two optimizer steps; weights or gradients that are no
    numbers then are one, too."""
    import deepspeed
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
    try:
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
        ones = torch.ones(1, 8, dtype=next(engine.module.parameters()).dtype)
        # Of ZenFlow's engine that is 0.
        for _ in range(2 * max(1, round(engine.gradient_accumulation_steps()))):
            engine.backward(engine(ones).float().sum())
            engine.step()
        # Steps of infinite gradients are skipped without an error; fp16's first ones are meant to be.
        norm = 0.0 if engine.fp16_enabled() else float(engine.get_global_grad_norm() or 0.0)
        is_finite = math.isfinite(norm) and bool(engine(ones).isfinite().all())
        engine.destroy()
    except Exception as error:  # whatever DeepSpeed ends in is the answer
        return f"{type(error).__name__}: {error}"[:300]
    return "" if is_finite else "weights or gradients are no numbers"


def main(configs: str, answers: str) -> None:
    import deepspeed

    prepare({})
    deepspeed.init_distributed(dist_backend="gloo")
    found = [verdict(config) for config in json.loads(Path(configs).read_text())]
    Path(answers).write_text(json.dumps(found))


if __name__ == "__main__":
    run_to_the_end(main, *sys.argv[1:])
