"""What the job's memory plan says of host memory and checkpoints, from the model's config alone."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from dsrun.doctor.gpu.presence import usable
from dsrun.doctor.host.limits import ranks_of
from dsrun.doctor.job.plan_request import request_of
from dsrun.doctor.machine import Machine, Target
from dsrun.errors import DsrunError
from dsrun.recipe.flags import ZERO_STAGE
from dsrun.recipe.recipe import Recipe
from dsrun.zero.memory.request import PLACES, Cluster, PlanRequest, cluster, is_place
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
        request = request_of(machine, target, recipe, _cluster(machine, target))
        strategy = _strategy(recipe, request)
        # Activations are not what is asked here.
        found = evaluate(replace(request, micro_batch=1, global_batch=None), strategy)
    except DsrunError:
        return None  # other checks say what is wrong with the job
    width = FP32 if request.precision == "fp32" else 2
    model = width * request.model.parameters
    return Needs(found.host, found.host_loading, found.nvme, found.checkpoint, model)


def _cluster(machine: Machine, target: Target) -> Cluster:
    gpus = usable(machine)
    name = gpus[0].name if gpus else ANY_GPU
    return cluster(f"{name}:{ranks_of(machine, target)}", nodes=max(1, target.nodes), memory=ANY_GPU_GIB)


def _strategy(recipe: Recipe, request: PlanRequest) -> Strategy:
    """The job's own; with --zero auto one of the default stage."""
    stage = ZERO_STAGE if request.stage is None else request.stage
    asked = [each for each in PLACES[stage] if is_place(stage, each, recipe.spec.offload)]
    place = request.offload or asked[0]
    master = recipe.spec.bf16_master_weights and place == "none"
    return Strategy(stage=stage, offload=place, checkpointing=True, bf16_master=master)
