"""`python -m bench lint [--configs 300] [--seed N]`: is the linter right about random configurations?

Each is given to `dsrun config check` and to DeepSpeed itself, whose engine takes two optimizer steps with a tiny model
on one or two ranks of this machine's CPUs. They disagree where the linter reports an error and the engine trains, or
none and it does not. The limit is zero disagreements.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.lint_configs import configuration
from bench.processes import HOUR_S, first_text
from dsrun.zero.lint.config_check import check
from tests.integration.lint_engines import prepare, verdict

ENGINE_S = 90
"""A rank takes some seconds; one that waits for another, which has failed, is ended then."""
PROGRESS = 25
"""Configurations from one line of progress to the next."""
WARM = {"train_batch_size": 1, "optimizer": {"type": "AdamW", "params": {"torch_adam": True}}}
_NAMES = {(True, True): "both refuse", (False, False): "both accept"}


def main(words: Sequence[str] = ()) -> bool:
    """Try them, print each disagreement; whether there is none."""
    parser = argparse.ArgumentParser(prog="python -m bench lint")
    parser.add_argument("--configs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(words)
    cases = [configuration(given.seed, number) for number in range(given.configs)]
    os.environ |= _place(0, 1)
    prepare({})
    _import_what_engines_do()
    began, counts = time.monotonic(), Counter[str]()
    for config, world in cases:
        truth, errors = engine_says(config, world), linter_says(config, world)
        name = _NAMES.get((bool(errors), bool(truth)), "disagreements")
        counts[name] += 1
        if counts.total() % PROGRESS == 0:
            print(f"{counts.total()} of {len(cases)}", file=sys.stderr, flush=True)
        if name == "disagreements":
            print(f"{world} rank{'s' * (world > 1)}: {json.dumps(config)}\n  engine: {truth or 'trains'}")
            print(f"  linter: {'; '.join(errors) or 'no error'}", flush=True)
    took = time.monotonic() - began
    shown = ", ".join(f"{name} {counts[name]}" for name in (*_NAMES.values(), "disagreements"))
    print(f"seed {given.seed}: {given.configs} configurations, {given.configs / took:.2f} a second: {shown}")
    return not counts["disagreements"]


def linter_says(config: dict[str, Any], world: int) -> list[str]:
    """Its errors, each as "code where"."""
    found = check(json.dumps(config), target="deepspeed", world_size=world)
    return [f"{each.code} {each.where}" for each in found if each.level == "error"]


def engine_says(config: dict[str, Any], world: int) -> str:
    """The error that a rank of the configuration's engines ends in, or how it dies; empty where all take their steps.
    The ranks are forks, so that nothing of them stays."""
    with tempfile.TemporaryDirectory(prefix="dsrun-lint-") as folder:
        return first_text(_rank, [(config, rank, world, Path(folder)) for rank in range(world)], limit_s=ENGINE_S)


def _rank(config: dict[str, Any], rank: int, world: int, folder: Path) -> str:
    _begin(rank, world, folder)
    return verdict(config)


def _begin(rank: int, world: int, folder: Path) -> None:
    os.environ |= _place(rank, world)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    import deepspeed
    import torch
    from deepspeed.accelerator import get_accelerator

    torch.set_num_threads(1)
    # It asks for fast fp16, of which a configuration says nothing; torch has it on every CPU.
    get_accelerator().is_fp16_supported = lambda: True
    meeting = f"file://{folder / 'ranks'}"
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, init_method=meeting, rank=rank, world_size=world)


def _import_what_engines_do() -> None:
    """An engine imports for far longer than it trains: once for all forks, what one has imported in a fork."""
    with tempfile.TemporaryDirectory(prefix="dsrun-lint-") as folder:
        names = first_text(_imported_by_engines, [(Path(folder),)], limit_s=HOUR_S)
    for name in names.split():
        with suppress(Exception):  # modules that make others by themselves
            import_module(name)
    # memory_breakdown has an engine collect garbage at every turn, seconds each with all these modules.
    gc.freeze()


def _imported_by_engines(folder: Path) -> str:
    _begin(0, 1, folder)
    for stage in (1, 3):
        verdict(WARM | {"zero_optimization": {"stage": stage}})
    return " ".join(sys.modules)


def _place(rank: int, world: int) -> dict[str, str]:
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    return {"GLOO_SOCKET_IFNAME": "lo", **{name: str(each) for name, each in place.items()}}


if __name__ == "__main__":
    sys.exit(not main(sys.argv[1:]))
