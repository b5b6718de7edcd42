"""`lint_engines CONFIGS ANSWERS`: for every config of a JSON file, whether a real engine takes a step with it."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from tests.integration.as_rank import run_to_the_end


def verdict(config: dict) -> str:
    """An empty text, or the error that the config ends in."""
    import deepspeed
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
    try:
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
        dtype = next(engine.module.parameters()).dtype
        for _ in range(2):
            engine.backward(engine(torch.ones(1, 8, dtype=dtype)).float().sum())
            engine.step()
        engine.destroy()
    except Exception as error:  # whatever DeepSpeed ends in is the answer
        return f"{type(error).__name__}: {error}"[:300] or "failed"
    return ""


def main(configs: str, answers: str) -> None:
    import deepspeed

    from dsrun.train.base.distributed import world_from_env
    from dsrun.train.loop.engine import prepare_ops

    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    # Without it DeepSpeed would compile its collectives through shared memory first: a minute.
    prepare_ops({}, world_from_env(use_cpu=True), notify=print)
    deepspeed.init_distributed(dist_backend="gloo")
    found = [verdict(config) for config in json.loads(Path(configs).read_text())]
    Path(answers).write_text(json.dumps(found))


if __name__ == "__main__":
    run_to_the_end(main, *sys.argv[1:])
