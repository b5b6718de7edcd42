"""A job as the memory planner takes it."""

from __future__ import annotations

from dataclasses import replace

from dsrun.doctor.job.zero_config import config_of
from dsrun.doctor.machine import Machine, Target
from dsrun.recipe.batch import batch_of
from dsrun.recipe.flags import ZERO_STAGE
from dsrun.recipe.recipe import Recipe
from dsrun.recipe.spec import DEFAULT_TARGET
from dsrun.zero.memory.model.architecture import Architecture
from dsrun.zero.memory.model.configs import find
from dsrun.zero.memory.model.count import count
from dsrun.zero.memory.optimizers import DEFAULT
from dsrun.zero.memory.own_config import with_deepspeed
from dsrun.zero.memory.request import PLACES, USUAL_LENGTH, Cluster, PlanRequest, Switch, default_precision, is_place
from dsrun.zero.memory.states import FP32


def request_of(machine: Machine, target: Target, recipe: Recipe, here: Cluster) -> PlanRequest:
    """The job on the GPUs `here`; with --zero auto, stage, micro batch and recomputation are left to the planner.

    Raises DsrunError where the model's config is not on this machine, its shapes are not known, or the job's settings
    do not go together.
    """
    spec, hf = recipe.spec, recipe.hf
    model = count(find(spec.model or "", machine.environ), meta=False, from_scratch=spec.from_scratch).architecture
    usual = min(USUAL_LENGTH, model.positions or USUAL_LENGTH)
    asked = "bf16" if hf.get("bf16") else "fp16" if hf.get("fp16") else "auto"
    micro = spec.micro_batch_size or hf.get("per_device_train_batch_size")
    if micro is None and spec.zero != "auto":
        micro = batch_of(recipe, here.world).micro_batch
    request = PlanRequest(
        model=model,
        cluster=here,
        length=_length(recipe, model, usual),
        source_length=spec.max_source_length or spec.max_length or usual,
        global_batch=spec.global_batch_size,
        lora=spec.lora,
        precision=default_precision(asked, model, here),
        checkpointing=_recomputation(recipe),
        optimizer=str(hf.get("optim") or DEFAULT),
        weights=2 if spec.weights_dtype in ("bfloat16", "float16") else FP32,
        micro_batch=micro,
        chunked_loss=bool(hf.get("use_liger_kernel")) and not model.seq2seq,
    )
    own = config_of(target) if hf.get("deepspeed") else None
    if own is not None:
        return replace(with_deepspeed(request, own, "the DeepSpeed JSON", given={}), micro_batch=micro)
    if spec.zero == "auto":
        return request
    stage = ZERO_STAGE if spec.zero is None else int(spec.zero)
    place = next(each for each in PLACES[stage] if is_place(stage, each, spec.offload))
    return replace(request, stage=stage, offload=place)


def _length(recipe: Recipe, model: Architecture, usual: int) -> int:
    spec = recipe.spec
    if model.seq2seq:
        return spec.max_target_length or DEFAULT_TARGET
    return spec.block_size or spec.max_length or usual


def _recomputation(recipe: Recipe) -> Switch:
    given = recipe.hf.get("gradient_checkpointing")
    if given is None and recipe.spec.zero == "auto":
        return "auto"
    return "on" if given else "off"
