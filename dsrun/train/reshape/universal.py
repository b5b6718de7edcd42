"""Writes DeepSpeed's universal checkpoint format: every parameter whole, in files of its own, for any number of ranks.

The layout is what `load_universal` reads (deepspeed 0.19, checkpoint/universal_checkpoint.py and
ZeROOptimizer.load_hp_checkpoint_state_from_checkpoint_dir for ZeRO-1 and 2, runtime/zero/stage3.py for ZeRO-3).
DeepSpeed's own converter, ds_to_universal, is not used: what it makes of a ZeRO-3 checkpoint only ZeRO-3 can load, it
scrambles the weights of runs with round_robin_gradients, and it holds whole optimizer files in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from dsrun.train.reshape.shards import load

# Hyperparameters that a resumed run takes from the checkpoint. The others follow from the run's own flags, as does how
# parameters are grouped: DeepSpeed's Adam has one group, the Trainer has two, with and without weight decay.
CARRIED = ("lr", "initial_lr", "betas", "eps")

# The loader walks over its own groups and these at once and ends with the shorter list.
GROUPS = 64

# Counters of the run; everything else in a file of model states is weights, or belongs to the old layout.
_COUNTERS = ("skipped_steps", "global_steps", "global_samples", "ds_version")

# The Trainer's file for the schedule of the learning rate.
SCHEDULE = "scheduler.pt"


class Source(Protocol):
    """Where parameters and optimizer states come from, one at a time."""

    @property
    def parameters(self) -> Mapping[str, Any]: ...
    @property
    def states(self) -> tuple[str, ...]: ...
    @property
    def step(self) -> int: ...
    @property
    def param_groups(self) -> list[dict[str, Any]]: ...
    @property
    def counters(self) -> dict[str, Any]: ...
    @property
    def loss_scaler(self) -> dict[str, Any]: ...
    def read(self, name: str, state: str = "fp32") -> torch.Tensor: ...


def write_universal(
    source: Source, folder: Path, *, schedule: Any, fp16: bool, beat: Callable[[], None] = lambda: None
) -> None:
    """Write `source` as a universal checkpoint below `folder`, `latest_universal` with its name beside it. `schedule`
    is the learning rate's, see `write_schedule`."""
    tag = f"global_step{source.counters['global_steps']}"
    zero = folder / tag / "zero"
    for name in source.parameters:
        own = zero / name
        own.mkdir(parents=True)
        for state in ("fp32", *source.states):
            torch.save({"param": source.read(name, state)}, own / f"{state}.pt")
        torch.save(source.step, own / "step.pt")
        beat()
    torch.save(_optimizer_state(source, fp16=fp16), zero / "optimizer_state.pt")
    for file in ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt"):
        torch.save(_model_states(source) | {"lr_scheduler": schedule}, folder / tag / file)
    (folder / "latest_universal").write_text(tag)


def write_schedule(checkpoint: Path, source: Source, folder: Path, *, same_groups: bool) -> Any:
    """Write the state of the learning rate's schedule as the Trainer looks for it, and return it for DeepSpeed, which
    keeps it itself when the optimizer is its own.

    Torch's schedules keep one rate per group of parameters, and DeepSpeed's Adam has another number of groups than
    torch's: without `same_groups` the run's own base rates stay, as --learning-rate gives them.
    """
    state = source.counters.get("lr_scheduler")
    if state is None:
        state = load(checkpoint / SCHEDULE)
    if not same_groups:
        state = {name: value for name, value in state.items() if name != "base_lrs"}
        if "lr_lambdas" in state:
            state["lr_lambdas"] = []
    torch.save(state, folder / SCHEDULE)
    return state


def common_hyperparameters(groups: list[dict[str, Any]]) -> dict[str, Any]:
    """Those of CARRIED that all groups agree on."""
    first = groups[0]
    return {
        name: first[name]
        for name in CARRIED
        if name in first and all(g.get(name) == first[name] for g in groups)
    }


def _optimizer_state(source: Source, *, fp16: bool) -> dict[str, Any]:
    common = common_hyperparameters(source.param_groups)
    scaler = source.loss_scaler if fp16 and source.loss_scaler.get("dynamic_loss_scale") else {}
    return {
        **scaler,
        "overflow": False,
        "ds_version": source.counters["ds_version"],
        # ZeRO-1 and 2 read the first, ZeRO-3 the second.
        "param_groups": [{**common, "params": []}] * GROUPS,
        "optimizer_state_dict": {
            "state": {0: {"step": source.step}},
            "param_groups": [{**common, "params": []}],
        },
    }


def _model_states(source: Source) -> dict[str, Any]:
    """What the engine restores besides parameters. The weights stay out: it takes them from the fp32 files."""
    counters = {name: source.counters.get(name) for name in _COUNTERS}
    return {"module": {}, "dp_world_size": 1, "mp_world_size": 1, **counters}
