"""A job as the memory planner takes it, and what its plan says of host memory and checkpoints."""

from dataclasses import replace
from typing import Any, NamedTuple

from dsrun.datafiles import evaluate as evaluated
from dsrun.datafiles import toml_beside
from dsrun.doctor.gpu.presence import usable
from dsrun.doctor.host.limits import ranks_of
from dsrun.doctor.job.settings import config_of
from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.errors import DsrunError
from dsrun.hub.modelscope_cache import stored_name
from dsrun.models.folder import find
from dsrun.recipe.batch import batch_of
from dsrun.recipe.flags import ZERO_STAGE
from dsrun.recipe.recipe import Recipe
from dsrun.recipe.recipe_spec import DEFAULT_TARGET
from dsrun.zero.generate.presets import USUAL_MEMORY_GIB
from dsrun.zero.memory.model.count import count
from dsrun.zero.memory.own_config import with_deepspeed
from dsrun.zero.memory.peak import ZeroStrategy
from dsrun.zero.memory.plan_request import (
    PLACES,
    USUAL_LENGTH,
    GpuCluster,
    PlanRequest,
    attention_of,
    cluster,
    default_precision,
    is_place,
)
from dsrun.zero.memory.rank.activations import LIGER
from dsrun.zero.memory.rank.optimizers import DEFAULT
from dsrun.zero.memory.rank.states import FP32, StateOffload
from dsrun.zero.memory.strategy import evaluate

ANY_GPU = "GPU"
"""What is planned for where there is no GPU: neither host memory nor checkpoints depend on it."""


def request_of(machine: MachineFacts, target: DoctorTarget, recipe: Recipe, here: GpuCluster) -> PlanRequest:
    """The job on the GPUs `here`; with --zero auto, stage, micro batch and recomputation are left to the planner.

    Raises DsrunError where the model's config is not on this machine, its shapes are not known, or the job's settings
    do not go together.
    """
    spec, hf = recipe.spec, recipe.hf
    name = stored_name(spec.model or "", spec, machine.environ)
    model = count(find(name, machine.environ), meta=False, from_scratch=spec.from_scratch).architecture
    beside = model if spec.task == "dpo" and not spec.lora else None
    if spec.task == "distill":
        teacher = stored_name(spec.teacher or "", spec, machine.environ)
        beside = count(find(teacher, machine.environ), meta=False, from_scratch=False).architecture
    usual = min(USUAL_LENGTH, model.positions or USUAL_LENGTH)
    asked = "bf16" if hf.get("bf16") else "fp16" if hf.get("fp16") else "auto"
    micro = spec.micro_batch_size or hf.get("per_device_train_batch_size")
    if micro is None and spec.zero != "auto":
        micro = batch_of(recipe, here.world).micro_batch
    names: dict[str, Any] = {each.__name__: each for each in (attention_of, default_precision, frozenset, str)}
    names |= {
        "LIGER": LIGER,
        "DEFAULT": DEFAULT,
        "DEFAULT_TARGET": DEFAULT_TARGET,
        "FP32": FP32,
        "asked": asked,
        "usual": usual,
    }
    names |= {"spec": spec, "hf": hf, "model": model, "cluster": here, "micro_batch": micro, "beside": beside}
    request = PlanRequest(**{name: evaluated(value, names) for name, value in toml_beside(__file__)["request"].items()})
    own = config_of(target) if hf.get("deepspeed") else None
    if own is not None:
        return replace(with_deepspeed(request, own, "the DeepSpeed JSON", given={}), micro_batch=micro)
    if spec.zero == "auto":
        return request
    stage = ZERO_STAGE if spec.zero is None else int(spec.zero)
    return replace(request, stage=stage, offload=_place(stage, recipe))


def _place(stage: int, recipe: Recipe) -> StateOffload:
    """Where the optimizer states are, for the job's --offload."""
    return next(each for each in PLACES[stage] if is_place(stage, each, recipe.spec.offload))


class MemoryNeeds(NamedTuple):
    """Bytes: of host memory per node in training and while the weights are loaded, of NVMe per node, of one checkpoint
    and of the final model."""

    host: int
    host_loading: int
    nvme: int
    checkpoint: int
    model: int


def needs(machine: MachineFacts, target: DoctorTarget) -> MemoryNeeds | None:
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
    return MemoryNeeds(found.host, found.host_loading, found.nvme, found.checkpoint, model)


def _cluster(machine: MachineFacts, target: DoctorTarget) -> GpuCluster:
    gpus = usable(machine)
    name = gpus[0].name if gpus else ANY_GPU
    return cluster(f"{name}:{ranks_of(machine, target)}", nodes=max(1, target.nodes), memory=float(USUAL_MEMORY_GIB))


def _strategy(recipe: Recipe, request: PlanRequest) -> ZeroStrategy:
    """The job's own; with --zero auto one of the default stage."""
    stage = ZERO_STAGE if request.stage is None else request.stage
    place = request.offload or _place(stage, recipe)
    master = recipe.spec.bf16_master_weights and place == "none"
    return ZeroStrategy(stage=stage, offload=place, checkpointing=True, bf16_master=master)
