"""What a user's own DeepSpeed JSON fixes of a plan: stage, offloading, batch, precision, buffers and optimizer."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dsrun.errors import UsageError
from dsrun.refusals import Refusals
from dsrun.zero.generate.presets import BufferSizes
from dsrun.zero.memory.plan_request import PlanRequest
from dsrun.zero.memory.rank.optimizers import of_deepspeed
from dsrun.zero.memory.rank.states import StateOffload
from dsrun.zero.view import MISSING, ZERO, ConfigView, find_target

# (offload_optimizer, offload_param) of ZeRO-3
_PLACES: Mapping[tuple[str, str], StateOffload] = {
    ("none", "none"): "none",
    ("cpu", "none"): "optimizer",
    ("cpu", "cpu"): "cpu",
    ("nvme", "nvme"): "nvme",
}


def with_deepspeed(
    request: PlanRequest, config: dict[str, Any], shown: str, *, given: Mapping[str, Any]
) -> PlanRequest:
    """The request as the JSON called `shown` has it; what it leaves to the Trainer ("auto") stays as it was.

    `given` are the command line's own values by flag. Raises UsageError where these differ from the file's, and for
    what is not planned."""
    view = ConfigView(config, find_target(config, None))
    stage = view.stage or 0
    fixed: dict[str, Any] = {"--zero": stage, "--offload": _place(view, stage, shown), **_batch(view, request)}
    if precision := _precision(view):
        fixed["--precision"] = precision
    if kind := config.get("optimizer", {}).get("type"):
        fixed["--optim"] = of_deepspeed(str(kind))
    for flag, value in fixed.items():
        if given.get(flag) not in (None, value):
            raise UsageError(f"{flag} {given[flag]} differs from {value} in {shown}", fix="remove one of them")
    named = {
        "--zero": "stage", "--offload": "offload", "--micro-batch-size": "micro_batch", "--optim": "optimizer",
        "--global-batch-size": "global_batch", "--precision": "precision",
    }  # fmt: skip
    changes = {named[flag]: value for flag, value in fixed.items()}
    sums = view.value("data_types.grad_accum_dtype") in ("fp32", "float32")
    return replace(request, own_sizes=_sizes(view, request) if stage else None, sums_in_fp32=sums, **changes)


def _place(view: ConfigView, stage: int, shown: str) -> StateOffload:
    optimizer, parameters = (view.offload(what) or "none" for what in ("offload_optimizer", "offload_param"))
    if stage < 3:
        return "none" if optimizer == "none" or not stage else "cpu"
    if (optimizer, parameters) not in _PLACES:
        texts = Refusals(__file__, "refusals.toml")
        raise texts.error("own_config.places", shown=shown, optimizer=optimizer, parameters=parameters)
    return _PLACES[optimizer, parameters]


def _batch(view: ConfigView, request: PlanRequest) -> dict[str, int]:
    keys = ("train_micro_batch_size_per_gpu", "train_batch_size", "gradient_accumulation_steps")
    micro, whole, steps = (found if isinstance(found := view.raw(key), int) else None for key in keys)
    if whole is None and micro is not None and steps is not None:
        whole = micro * steps * request.cluster.world
    if micro is None and whole is not None and steps:
        micro = whole // (steps * request.cluster.world) or None
    found = {"--micro-batch-size": micro, "--global-batch-size": whole}
    return {flag: value for flag, value in found.items() if value is not None}


def _precision(view: ConfigView) -> str | None:
    """None where the Trainer decides."""
    on = {name: view.precision(name) for name in ("bf16", "fp16")}
    if None in on.values():
        return None
    return next((name for name, enabled in on.items() if enabled), "fp32")


def _sizes(view: ConfigView, request: PlanRequest) -> BufferSizes:
    """The JSON's own sizes; for "auto" what the Trainer fills in (transformers/integrations/deepspeed.py)."""
    hidden = request.model.hidden
    auto = {
        "reduce_bucket_size": hidden * hidden,
        "stage3_prefetch_bucket_size": int(0.9 * hidden * hidden),
        "stage3_param_persistence_threshold": 10 * hidden,
    }

    def size(key: str) -> int:
        found = view.taken(ZERO, key)
        return int(found) if isinstance(found, int | float) else auto.get(key, 0)

    overlap, pinned = view.taken(ZERO, "overlap_comm"), view.raw(ZERO, "offload_optimizer", "pin_memory")
    return BufferSizes(
        reduce_bucket=size("reduce_bucket_size"),
        prefetch=size("stage3_prefetch_bucket_size"),
        persistence=size("stage3_param_persistence_threshold"),
        live=size("stage3_max_live_parameters"),
        # DeepSpeed overlaps under ZeRO-3 unless told otherwise.
        overlap=view.stage == 3 if overlap in (None, MISSING) else bool(overlap),
        sub_group=size("sub_group_size"),
        pinned=pinned is True,
    )
