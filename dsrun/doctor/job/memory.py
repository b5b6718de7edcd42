"""The memory that a job needs against what is free on the GPUs, and who holds the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dsrun.doctor.check import Check, failure, fine, warning
from dsrun.doctor.job.zero_config import config_of
from dsrun.doctor.machine import Machine, Target
from dsrun.errors import DsrunError
from dsrun.findings import Finding
from dsrun.recipe.flags import ZERO_STAGE
from dsrun.recipe.preflight.files import DEMO_MODELS
from dsrun.recipe.recipe import Recipe
from dsrun.system.gpus import Gpu
from dsrun.zero.generate.presets import GIB
from dsrun.zero.memory.model.configs import find
from dsrun.zero.memory.model.count import count
from dsrun.zero.memory.own_config import with_deepspeed
from dsrun.zero.memory.plan import plan
from dsrun.zero.memory.request import PLACES, USUAL_LENGTH, PlanRequest, cluster, default_precision, is_place
from dsrun.zero.memory.strategy import Candidate

# Of a GPU on which nobody works: the driver's own, and a desktop's.
_USUALLY_FREE = 0.9


def look(machine: Machine, target: Target) -> Iterator[Finding]:
    """With a job: whether its plan fits into what is free. Without: whether the GPUs are free."""
    gpus = machine.gpus
    if not gpus or (target.nodes and not machine.environ.get("SLURM_JOB_ID")):
        return  # a job for SLURM runs on other GPUs than those of the login node
    recipe = target.recipe
    if recipe is None or recipe.spec.model in (None, *DEMO_MODELS):  # the demos' models have a few MiB
        yield from _unused(machine, gpus)
        return
    try:
        chosen = _planned(machine, target, recipe, gpus)
    except DsrunError as error:
        yield from _unused(machine, gpus)
        yield fine("gpu_memory_unknown", f"the job's memory cannot be planned: {error.message}")
        return
    if isinstance(chosen, str):
        yield failure("gpu_memory_plan", chosen, "`dsrun plan` compares all strategies")
        return
    short = [gpu for gpu in gpus if _free(machine, gpu) < chosen.gpu.total]
    needed = f"{chosen.gpu.total / GIB:.1f} GiB per GPU ({chosen.strategy}, micro batch {chosen.micro_batch})"
    if not short:
        least = min(_free(machine, gpu) for gpu in gpus)
        yield fine("gpu_memory", f"the job takes {needed}, and at least {least / GIB:.1f} GiB are free")
    for gpu in short:
        yield failure(
            "gpu_memory_taken", f"{_state(machine, gpu)}; the job takes {needed}", _way_out(machine, gpu, gpus)
        )


def _unused(machine: Machine, gpus: list[Gpu]) -> Iterator[Finding]:
    busy = [gpu for gpu in gpus if gpu.memory_total and _free(machine, gpu) < _USUALLY_FREE * gpu.memory_total]
    for gpu in busy:
        yield warning("gpu_memory_taken", _state(machine, gpu), _way_out(machine, gpu, gpus))
    if not busy:
        total = sum(_free(machine, gpu) for gpu in gpus)
        yield fine("gpu_memory", f"{total / GIB:.0f} GiB free on {len(gpus)} GPU{'' if len(gpus) == 1 else 's'}")


def _free(machine: Machine, gpu: Gpu) -> int:
    """Free bytes; all of them where the driver does not say, as on GPUs that share the host's memory."""
    memory = machine.driver.memory.get(gpu.uuid) if machine.driver else None
    return (gpu.memory_total or 1 << 60) if memory is None or memory.free is None else memory.free


def _state(machine: Machine, gpu: Gpu) -> str:
    memory = machine.driver.memory.get(gpu.uuid) if machine.driver else None
    holders = sorted(memory.holders if memory else (), key=lambda each: -(each.used or 0))
    text = f"GPU {gpu.index}: {_free(machine, gpu) / GIB:.1f} of {(gpu.memory_total or 0) / GIB:.1f} GiB free"
    if not holders:
        return f"{text}, the rest is held by processes that are not shown here (another container or user)"
    shown = [f"{each}{f' ({each.used / GIB:.1f} GiB)' if each.used else ''}" for each in holders[:3]]
    more = f" and {len(holders) - 3} more" if len(holders) > 3 else ""
    return f"{text}, held by {', '.join(shown)}{more}"


def _way_out(machine: Machine, gpu: Gpu, gpus: list[Gpu]) -> str:
    memory = machine.driver.memory.get(gpu.uuid) if machine.driver else None
    named = [str(each.pid) for each in (memory.holders if memory else ()) if each.name]
    end = f"end it if it is yours: kill {' '.join(named)}" if named else "wait until it ends"
    free = [each for each in gpus if each.memory_total and _free(machine, each) >= _USUALLY_FREE * each.memory_total]
    if free and len(free) < len(gpus):
        return f"{end}; or use the free ones: CUDA_VISIBLE_DEVICES={','.join(str(each.index) for each in free)}"
    return end


def _planned(machine: Machine, target: Target, recipe: Recipe, gpus: list[Gpu]) -> Candidate | str:
    """The strategy that the job would take, or why none fits. Raises DsrunError where nothing can be planned."""
    spec = recipe.spec
    counted = count(find(spec.model or "", machine.environ), meta=False, from_scratch=spec.from_scratch)
    model = counted.architecture
    sizes = [gpu.memory_total / GIB for gpu in gpus if gpu.memory_total]
    here = cluster(
        f"{gpus[0].name}:{target.nproc or len(gpus)}", nodes=max(1, target.nodes), memory=min(sizes, default=None)
    )
    usual = min(USUAL_LENGTH, model.positions or USUAL_LENGTH)
    length = spec.max_target_length if model.seq2seq else spec.block_size
    asked = "bf16" if recipe.hf.get("bf16") else "fp16" if recipe.hf.get("fp16") else "auto"
    recompute = recipe.hf.get("gradient_checkpointing")
    request = replace(
        PlanRequest(model=model, cluster=here),
        length=length or spec.max_length or usual,
        source_length=spec.max_source_length or spec.max_length or usual,
        global_batch=spec.global_batch_size,
        lora=spec.lora,
        preset="aggressive",
        precision=default_precision(asked, model, here),
        checkpointing="auto" if recompute is None else "on" if recompute else "off",
        micro_batch=spec.micro_batch_size or recipe.hf.get("per_device_train_batch_size"),
        chunked_loss=bool(recipe.hf.get("use_liger_kernel")) and not model.seq2seq,
    )
    config = config_of(target)
    if config is not None and recipe.hf.get("deepspeed"):
        request = with_deepspeed(request, config, "the DeepSpeed JSON", given={})
    elif spec.zero != "auto":
        stage = ZERO_STAGE if spec.zero is None else int(spec.zero)
        place = next(each for each in PLACES[stage] if is_place(stage, each, spec.offload))
        request = replace(request, stage=stage, offload=place)
    made = plan(request)
    if made.choice is not None:
        return made.choice
    least = min(made.rows, key=lambda row: row.gpu.total)
    remedy = f"; {made.remedies[0]}" if made.remedies else ""
    need = f"{least.strategy} with micro batch {least.micro_batch or 1} takes {least.gpu.total / GIB:.1f} GiB per GPU"
    return f"the job does not fit: {need}, of {here.memory:.1f} GiB{remedy}"


GPU_MEMORY = Check(
    "gpu_memory",
    "GPU memory",
    look,
    needs="needs a GPU that the job will run on",
    finds="GPU memory that other processes hold, by process and user; with a job, less free memory than its plan takes",
)
