"""How a checkpoint's state is laid out over files, and DeepSpeed's universal checkpoint, which any layout can load."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

import torch

from dsrun.errors import UsageError
from dsrun.train.checkpoint.plain import PlainCheckpoint
from dsrun.train.checkpoint.zero_shards import ZeroCheckpoint, load, state_folder
from dsrun.zero.ops import ADAM

LayoutChange = Literal["none", "order", "convert"]

# Hyperparameters that a resumed run takes from the checkpoint. The others follow from the run's own flags, as does how
# parameters are grouped: DeepSpeed's Adam has one group, the Trainer has two, with and without weight decay; both have
# the same ones where learning rates differ.
CARRIED = ("lr", "initial_lr", "betas", "eps")
# The loader walks over its own groups and these at once and ends with the shorter list.
GROUPS = 64
# The optimizer's state in a universal checkpoint, below its tag.
OPTIMIZER_STATE = Path("zero", "optimizer_state.pt")
# Counters of the run; everything else in a file of model states is weights, or belongs to the old layout.
_COUNTERS = ("skipped_steps", "global_steps", "global_samples", "ds_version")
# The Trainer's file for the schedule of the learning rate.
SCHEDULE = "scheduler.pt"


@dataclass(frozen=True, kw_only=True)
class CheckpointLayout:
    """Decides whether DeepSpeed and the Trainer can load a checkpoint as it is. `stage` is 0 for plain DDP, with
    `engine` where DeepSpeed runs all the same. `own_adam`: DeepSpeed's Adam, with all parameters in one group, not
    torch's, with two; `round_robin`: ZeRO-1 and 2 shuffle the parameters; `own_scheduler`: the learning rate is
    DeepSpeed's business; `fp16`, `bf16`: the weights beside the fp32 ones."""

    world_size: int
    stage: int
    engine: bool = True
    own_adam: bool = False
    round_robin: bool = False
    own_scheduler: bool = False
    nvme: bool = False
    fp16: bool = False
    bf16: bool = False

    @classmethod
    def wanted(cls, world_size: int, deepspeed: Mapping[str, Any] | None) -> Self:
        """The layout of a run on `world_size` ranks with this DeepSpeed configuration, None for plain DDP."""
        if deepspeed is None:
            return cls(world_size=world_size, stage=0, engine=False)
        optimizer = deepspeed.get("optimizer") or {}
        torch_adam = (optimizer.get("params") or {}).get("torch_adam")
        return cls(
            world_size=world_size,
            own_adam=str(optimizer.get("type", "")).lower() in ADAM and not torch_adam,
            **{each: (deepspeed.get(each) or {}).get("enabled") is True for each in ("fp16", "bf16")},
            **_of_config(deepspeed),
        )

    @property
    def description(self) -> str:
        ranks = "1 rank" if self.world_size == 1 else f"{self.world_size} ranks"
        return f"{f'ZeRO-{self.stage}' if self.stage else 'no ZeRO'} on {ranks}{' in bf16' * self.bf16}"

    def change_to(self, other: Self) -> LayoutChange:
        """What a run of layout `other` must do to load this one: nothing, keep the saved order of parameters, or
        convert it."""
        if self.stage == other.stage == 0 and self.engine == other.engine:
            return "none"
        decisive = ("world_size", "stage", "engine", "own_adam", "nvme", "bf16")
        if any(getattr(self, name) != getattr(other, name) for name in decisive):
            return "convert"
        return "order" if self.stage in (1, 2) and self.round_robin != other.round_robin else "none"


def layout_of(checkpoint: Path) -> CheckpointLayout:
    """The layout of a checkpoint, from its files. Raises UsageError for an unknown kind of checkpoint."""
    folder = state_folder(checkpoint)
    if folder is None:
        ranks = len(list(checkpoint.glob("rng_state_*.pth")))
        return CheckpointLayout(world_size=max(1, ranks), stage=0, engine=False)
    files = list(folder.glob("*_optim_states.pt"))
    if not files:
        return _without_zero(folder)
    zero = ZeroCheckpoint(checkpoint)
    of_config = _of_config(zero.model_states.get("ds_config") or {})
    if of_config["stage"] == 0:
        return _without_zero(folder)
    of_files = {
        "stage": zero.stage,
        "own_adam": "bias_correction" in zero.param_groups[0],
        # The engine looks for files of its own precision's name (_get_zero_ckpt_prefix in runtime/engine.py).
        "bf16": files[0].name.startswith("bf16_"),
    }
    return CheckpointLayout(world_size=zero.world_size, **(of_config | of_files))


def _without_zero(folder: Path) -> CheckpointLayout:
    """DeepSpeed at stage 0: the whole state in one file, which any number of ranks can load."""
    file = folder / "mp_rank_00_model_states.pt"
    if not file.is_file():
        raise UsageError(f"{folder}: neither optimizer states nor model states are there")
    return CheckpointLayout(world_size=int(load(file).get("dp_world_size", 1)), stage=0)


def _of_config(deepspeed: Mapping[str, Any]) -> dict[str, Any]:
    zero = deepspeed.get("zero_optimization") or {}
    devices = [(zero.get(block) or {}).get("device") for block in ("offload_optimizer", "offload_param")]
    return {
        "stage": int(zero.get("stage", 0)),
        "round_robin": bool(zero.get("round_robin_gradients")),
        "own_scheduler": bool(deepspeed.get("scheduler")),
        "nvme": "nvme" in devices,
    }


CheckpointSource: TypeAlias = ZeroCheckpoint | PlainCheckpoint


def write_universal(
    source: CheckpointSource, folder: Path, *, schedule: Any, fp16: bool, beat: Callable[[], None] = lambda: None
) -> None:
    """Write `source` as a universal checkpoint below `folder`, and `latest_universal` with its name. `schedule` is the
    learning rate's, see `write_schedule`."""
    tag = f"global_step{source.counters['global_steps']}"
    zero = folder / tag / "zero"
    for name in source.parameters:
        own = zero / name
        own.mkdir(parents=True)
        for state in ("fp32", *source.states):
            torch.save({"param": source.read(name, state)}, own / f"{state}.pt")
        torch.save(source.step, own / "step.pt")
        beat()
    torch.save(_optimizer_state(source, fp16=fp16), folder / tag / OPTIMIZER_STATE)
    # What the engine restores besides parameters. The weights stay out: it takes them from the fp32 files.
    counters = {name: source.counters.get(name) for name in _COUNTERS}
    states = {"module": {}, "dp_world_size": 1, "mp_world_size": 1, "lr_scheduler": schedule, **counters}
    for file in ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt"):
        torch.save(states, folder / tag / file)
    (folder / "latest_universal").write_text(tag)


def write_schedule(
    checkpoint: Path, source: CheckpointSource, folder: Path, saved: CheckpointLayout, layout: CheckpointLayout
) -> Any:
    """Write the state of the learning rate's schedule for the Trainer, and return it for DeepSpeed. Torch's schedules
    keep one rate per group of parameters, and DeepSpeed's Adam has another number of groups: with other groups the
    run's own base rates stay, as --learning-rate gives them."""
    state = source.counters.get("lr_scheduler")
    if state is None:
        state = load(checkpoint / SCHEDULE)
    if saved.own_adam != layout.own_adam or bool(saved.stage) != bool(layout.stage):
        state = {name: value for name, value in state.items() if name != "base_lrs"}
        if "lr_lambdas" in state:
            # LambdaLR.load_state_dict goes through those saved by index, and this run may have fewer: IndexError.
            state["lr_lambdas"] = []
    torch.save(state, folder / SCHEDULE)
    return state


def common_hyperparameters(groups: list[dict[str, Any]]) -> dict[str, Any]:
    first = groups[0]
    return {name: first[name] for name in CARRIED if name in first and all(g.get(name) == first[name] for g in groups)}


def group_hyperparameters(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What each group takes over, and any further ones: with different learning rates, runs have the same groups in any
    layout."""
    own = [{name: group[name] for name in CARRIED if name in group} for group in groups]
    return [*own, *[common_hyperparameters(groups)] * (GROUPS - len(groups))]


def _optimizer_state(source: CheckpointSource, *, fp16: bool) -> dict[str, Any]:
    common = common_hyperparameters(source.param_groups)
    scaler = source.loss_scaler if fp16 and source.loss_scaler.get("dynamic_loss_scale") else {}
    return {
        **scaler,
        "overflow": False,
        "ds_version": source.counters["ds_version"],
        # ZeRO-1 and 2 read the first, ZeRO-3 the second.
        "param_groups": [{**each, "params": []} for each in group_hyperparameters(source.param_groups)],
        "optimizer_state_dict": {"state": {0: {"step": source.step}}, "param_groups": [{**common, "params": []}]},
    }
