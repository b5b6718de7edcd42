"""What the job's memory plan says of host memory and checkpoints, from the model's config alone."""

from __future__ import annotations

from typing import NamedTuple

from dsrun.doctor.gpu.presence import usable
from dsrun.doctor.host.limits import ranks_of
from dsrun.doctor.job.zero_config import config_of
from dsrun.doctor.machine import Machine, Target
from dsrun.errors import DsrunError
from dsrun.recipe.flags import ZERO_STAGE
from dsrun.recipe.recipe import Recipe
from dsrun.zero.memory.model.configs import find
from dsrun.zero.memory.model.count import describe
from dsrun.zero.memory.optimizers import DEFAULT
from dsrun.zero.memory.own_config import with_deepspeed
from dsrun.zero.memory.request import PLACES, USUAL_LENGTH, Cluster, PlanRequest, cluster, default_precision, is_place
from dsrun.zero.memory.states import FP32
from dsrun.zero.memory.strategy import Strategy, evaluate

ANY_GPU = "GPU"
ANY_GPU_GIB = 80.0
"""What is planned for where there is no GPU: neither host memory nor checkpoints depend on it."""


class Needs(NamedTuple):
    """Bytes: of host memory per node in training and while the weights are loaded, of NVMe per node, of one checkpoint
    and of the final model."""

    host: int
    host_loading: int
    nvme: int
    checkpoint: int
    model: int


def needs(machine: Machine, target: Target) -> Needs | None:
    """What the job needs of this machine; None where no job is known, or its model's config is not here, or is of a
    kind that is counted with torch only. A plan for `--zero auto` is one for the default stage."""
    recipe = target.recipe
    if recipe is None or recipe.spec.model is None:
        return None
    try:
        request = _request(machine, target, recipe)
        strategy = _strategy(recipe, request)
        found = evaluate(request, strategy)
    except DsrunError:
        return None  # other checks say what is wrong with the job
    width = FP32 if request.precision == "fp32" else 2
    model = width * request.model.parameters
    return Needs(found.host, found.host_loading, found.nvme, found.checkpoint, model)


def _request(machine: Machine, target: Target, recipe: Recipe) -> PlanRequest:
    spec, hf = recipe.spec, recipe.hf
    model = describe(find(spec.model or "", machine.environ).config, from_scratch=spec.from_scratch)
    here = _cluster(machine, target)
    asked = "bf16" if hf.get("bf16") else "fp16" if hf.get("fp16") else "auto"
    length = min(USUAL_LENGTH, model.positions or USUAL_LENGTH)
    request = PlanRequest(
        model=model,
        cluster=here,
        length=length,
        source_length=length,
        lora=spec.lora,
        precision=default_precision(asked, model, here),
        optimizer=str(hf.get("optim") or DEFAULT),
        weights=2 if spec.weights_dtype in ("bfloat16", "float16") else FP32,
        micro_batch=1,  # activations are not what is asked here
    )
    own = config_of(target) if hf.get("deepspeed") else None
    return request if own is None else with_deepspeed(request, own, "the DeepSpeed JSON", given={})


def _cluster(machine: Machine, target: Target) -> Cluster:
    gpus = usable(machine)
    name = gpus[0].name if gpus else ANY_GPU
    return cluster(f"{name}:{ranks_of(machine, target)}", nodes=max(1, target.nodes), memory=ANY_GPU_GIB)


def _strategy(recipe: Recipe, request: PlanRequest) -> Strategy:
    spec = recipe.spec
    if request.stage is not None:  # that of the user's own JSON
        return Strategy(stage=request.stage, offload=request.offload or "none", checkpointing=True)
    stage = ZERO_STAGE if spec.zero in (None, "auto") else int(str(spec.zero))
    place = next(each for each in PLACES[stage] if is_place(stage, each, spec.offload))
    master = spec.bf16_master_weights and place == "none"
    return Strategy(stage=stage, offload=place, checkpointing=True, bf16_master=master)
