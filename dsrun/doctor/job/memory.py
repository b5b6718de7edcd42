"""The memory that a job needs against what is free, on the GPUs, and who holds the rest, and on the host."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from dsrun.doctor.gpu.presence import usable
from dsrun.doctor.job.settings import MemoryNeeds, needs, request_of
from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.errors import DsrunError, UsageError
from dsrun.findings.finding import Finding, finding_of, first_where, text_of
from dsrun.machine.gpus import LocalGpu
from dsrun.messages import joined
from dsrun.recipe.batch import batch_of
from dsrun.recipe.preflight.files import DEMO_MODELS
from dsrun.recipe.recipe import Recipe
from dsrun.system.files import nearest_existing
from dsrun.system.host import meminfo, memory_available, memory_total
from dsrun.system.terminal.display import counted
from dsrun.zero.generate.presets import GIB
from dsrun.zero.memory.plan import plan
from dsrun.zero.memory.plan_request import PlanRequest, cluster
from dsrun.zero.memory.strategy import PlanCandidate, best_of, bf16_strategies, compared, evaluate, strategies

# Of a GPU on which nobody works: the driver's own, and a desktop's.
_USUALLY_FREE = 0.9


def look_at_gpus(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    """With a job: whether its plan fits into what is free. Without: whether the GPUs are free."""
    gpus = machine.gpus
    if not gpus or not target.runs_on(machine):
        return
    recipe = target.recipe
    if recipe is None or recipe.spec.model in (None, *DEMO_MODELS):  # the demos' models have a few MiB
        yield from _unused(machine, gpus)
        return
    try:
        request = _request(machine, target, recipe, gpus)
        chosen = _chosen(request, recipe)
        if chosen is None:
            yield _too_large(request, recipe)
            return
    except DsrunError as error:
        yield from _unused(machine, gpus)
        yield finding_of("gpu_memory_unknown", why=error.message)
        return
    short = [gpu for gpu in gpus if _free(machine, gpu) < chosen.gpu.total]
    needed = text_of(
        "gpu_memory.needed", size=chosen.gpu.total / GIB, strategy=str(chosen.strategy), micro_batch=chosen.micro_batch
    )
    if not short:
        yield finding_of("gpu_memory", needed=needed, least=min(_free(machine, gpu) for gpu in gpus) / GIB)
    for gpu in short:
        state, fix = _state(machine, gpu), _way_out(machine, gpu, gpus)
        yield finding_of("gpu_memory_taken", state=state, needed=needed, fix=fix)


def _unused(machine: MachineFacts, gpus: list[LocalGpu]) -> Iterator[Finding]:
    busy = [gpu for gpu in gpus if gpu.memory_total and _free(machine, gpu) < _USUALLY_FREE * gpu.memory_total]
    for gpu in busy:
        state, fix = _state(machine, gpu), _way_out(machine, gpu, gpus)
        yield Finding(level="warning", code="gpu_memory_taken", message=state, fix=fix)
    if not busy:
        total = sum(_free(machine, gpu) for gpu in gpus)
        yield finding_of("gpu_memory.free", total=total / GIB, gpus=counted(len(gpus), "GPU"))


def _free(machine: MachineFacts, gpu: LocalGpu) -> int:
    """Free bytes; all of them where the driver does not say, as on GPUs that share the host's memory."""
    memory = machine.driver.memory.get(gpu.uuid) if machine.driver else None
    return (gpu.memory_total or 1 << 60) if memory is None or memory.free is None else memory.free


def _state(machine: MachineFacts, gpu: LocalGpu) -> str:
    memory = machine.driver.memory.get(gpu.uuid) if machine.driver else None
    holders = sorted(memory.holders if memory else (), key=lambda each: -(each.used or 0))
    free = text_of(
        "gpu_memory_taken.free", index=gpu.index, free=_free(machine, gpu) / GIB, total=(gpu.memory_total or 0) / GIB
    )
    if not holders:
        return text_of("gpu_memory_taken.hidden", free=free)
    shown = ", ".join(f"{each}{f' ({each.used / GIB:.1f} GiB)' if each.used else ''}" for each in holders[:3])
    if len(holders) > 3:
        return text_of("gpu_memory_taken.held_and_more", free=free, holders=shown, more=len(holders) - 3)
    return text_of("gpu_memory_taken.held", free=free, holders=shown)


def _way_out(machine: MachineFacts, gpu: LocalGpu, gpus: list[LocalGpu]) -> str:
    memory = machine.driver.memory.get(gpu.uuid) if machine.driver else None
    named = [str(each.pid) for each in (memory.holders if memory else ()) if each.name]
    end = text_of("gpu_memory_taken.kill", pids=" ".join(named)) if named else text_of("gpu_memory_taken.wait")
    free = [each for each in gpus if each.memory_total and _free(machine, each) >= _USUALLY_FREE * each.memory_total]
    if free and len(free) < len(gpus):
        indices = ",".join(str(each.index) for each in free)
        return text_of("gpu_memory_taken.others", end=end, indices=indices)
    return end


def _request(machine: MachineFacts, target: DoctorTarget, recipe: Recipe, gpus: list[LocalGpu]) -> PlanRequest:
    """The job as the planner takes it. Raises DsrunError where it cannot be planned."""
    for name in ("long_context", "quantization", "fp8"):
        if recipe.value(name):
            raise UsageError(f"{recipe.where(name)} is not planned here", fix="dsrun plan")
    sizes = [gpu.memory_total / GIB for gpu in gpus if gpu.memory_total]
    name = f"{gpus[0].name}:{target.nproc or len(gpus)}"
    here = cluster(name, nodes=max(1, target.nodes), memory=min(sizes, default=None))
    return replace(request_of(machine, target, recipe, here), preset="aggressive")


def _chosen(request: PlanRequest, recipe: Recipe) -> PlanCandidate | None:
    """The strategy that the job would take, if it fits; `plan` also proposes what the job does not ask for."""
    made = strategies(request)
    if recipe.spec.bf16_master_weights:
        made = bf16_strategies(request)
    rows = compared([evaluate(request, each) for each in made])
    return best_of([row for row in rows if row.verdict != "does not fit"])


def _too_large(request: PlanRequest, recipe: Recipe) -> Finding:
    """A job that does not fit: a memory fallback halves the micro batch, where that helps."""
    smaller = _chosen(replace(request, micro_batch=None), recipe)
    peak = evaluate(request, next(iter(strategies(request)))).gpu.total / GIB
    what = text_of(
        "gpu_memory_plan.takes", micro_batch=request.micro_batch or 1, peak=peak, memory=request.cluster.memory
    )
    if smaller is not None:
        # A power of two divides most global batches, which stay as they are.
        fitting = 2 ** int(math.log2(smaller.micro_batch))
        whole = batch_of(recipe, request.cluster.world).global_batch
        fix = f"--micro-batch-size {fitting} --global-batch-size {whole}"
        return finding_of("gpu_memory_fallback" if recipe.spec.remedy else "gpu_memory_plan.likely", what=what, fix=fix)
    remedies = plan(replace(request, micro_batch=None)).remedies
    return finding_of("gpu_memory_plan.never", what=what, fix=joined("; ", remedies[:2]) or None)


def look_at_host(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    # The memory of a login node says nothing about the machine that will train.
    elsewhere = not usable(machine) or (target.nodes and not machine.environ.get("SLURM_JOB_ID"))
    planned = None if elsewhere else needs(machine, target)
    if planned is None or target.recipe is None:
        return
    total, free = memory_total(machine.root), memory_available(machine.root)
    names = {
        "wanted": max(planned.host, planned.host_loading),
        "loading": planned.host_loading > planned.host,
        "offload": target.recipe.spec.offload,
        "machine": meminfo(machine.root, "MemTotal"),
    }
    yield from first_where(__file__, "host", total=total, free=free, joined=joined, **names)
    yield from _nvme(machine, target, planned)


def _nvme(machine: MachineFacts, target: DoctorTarget, planned: MemoryNeeds) -> Iterator[Finding]:
    """The folder of --offload nvme has to hold the states of all ranks of this node."""
    path = target.recipe.spec.nvme_path if target.recipe else None
    if not planned.nvme or not path:
        return
    state = machine.statvfs(nearest_existing(target.cwd / Path(path).expanduser()))
    free = state.f_frsize * state.f_bavail
    if free < planned.nvme:
        yield finding_of("host_memory_nvme", path=path, free=free / GIB, nvme=planned.nvme / GIB)
