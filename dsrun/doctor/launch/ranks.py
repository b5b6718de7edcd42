"""Ranks against visible GPUs, and what an earlier launcher, allocation or debugging session left in the environment."""

from collections.abc import Iterator

from dsrun.datafiles import toml_beside
from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.errors import DsrunError
from dsrun.findings.conditions import first_where
from dsrun.findings.finding import Finding
from dsrun.findings.texts import finding_of, text_of
from dsrun.launch.context import LaunchRequest
from dsrun.launch.detection.slurm import in_slurm_step
from dsrun.launch.detection.started import launcher_of
from dsrun.launch.training_job import decide
from dsrun.machine.torch_gpus import NO_DEVICES
from dsrun.system.env import worker_from_env
from dsrun.system.host import cores
from dsrun.system.terminal.display import counted
from dsrun.system.variables import MISLEADING

VISIBLE = "CUDA_VISIBLE_DEVICES"
GIB = 2**30


def look_at_ranks(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    """What `dsrun train --nproc` refuses, and GPUs that a variable hides."""
    every = list(machine.driver.gpus) if machine.driver else []
    seen = machine.gpus
    value = machine.environ.get(VISIBLE)
    if not target.runs_on(machine):
        return
    names = {"variable": VISIBLE, "every": len(every), "seen": len(seen)}
    problem = None
    if every and value is not None:
        named = len([entry for entry in value.split(",") if entry.strip()])
        problem = next(first_where(__file__, "hidden", value=value, named=named, NO_DEVICES=NO_DEVICES, **names), None)
    if problem:
        yield problem
    wants_cpu = bool(target.recipe and target.recipe.hf.get("use_cpu"))
    try:
        topology = decide(nproc=target.nproc, visible_gpus=len(seen), cores=cores(machine.root), use_cpu=wants_cpu)
    except DsrunError as error:
        yield Finding(level="error", code="ranks", message=error.message, fix=error.fix or "")
        return
    if problem:
        return
    ranks = counted(topology.workers, "rank")
    yield from first_where(__file__, "ranks", ranks=ranks, device=topology.device, **names)


def check_requirements(machine: MachineFacts, min_gpus: int | None, min_gpu_memory_gib: float | None) -> list[Finding]:
    """An error if fewer GPUs than --min-gpus are visible here, and one for each with less than --min-gpu-memory."""
    gpus = machine.gpus
    found = []
    if min_gpus is not None and len(gpus) < min_gpus:
        key = "requirements_gpus.one" if len(gpus) == 1 else "requirements_gpus"
        found.append(finding_of(key, count=len(gpus), wanted=min_gpus))
    for gpu in gpus:
        if min_gpu_memory_gib is not None and gpu.memory_total is not None:
            gib, wanted = gpu.memory_total / GIB, min_gpu_memory_gib
            if gib < wanted:
                found.append(finding_of("requirements_memory", index=gpu.index, name=gpu.name, gib=gib, wanted=wanted))
    return found or [finding_of("requirements", gpus=counted(len(gpus), "visible GPU"))]


_WORKER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


def look_at_variables(machine: MachineFacts, _: DoctorTarget) -> Iterator[Finding]:
    """What would make `dsrun train` here a rank of a run that is not there, train without DeepSpeed, or slowly."""
    found = [*_worker(machine), *_job(machine), *_accelerate(machine), *_slow(machine)]
    yield from found or [finding_of("variables")]


def _worker(machine: MachineFacts) -> Iterator[Finding]:
    environ = machine.environ
    if launcher_of(LaunchRequest(), environ):  # A pod's own, which `dsrun launch` reads.
        return
    left = [name for name in _WORKER if environ.get(name, "").strip()]
    unset = f"unset {' '.join(left)}"
    try:
        worker = worker_from_env(environ)
    except DsrunError as error:
        fix = unset if left else error.fix or ""
        yield Finding(level="error", code="variables_worker", message=error.message, fix=fix)
        return
    if worker is not None and not in_slurm_step(environ):
        yield finding_of("variables_worker", rank=worker.rank, world_size=worker.world_size, unset=unset)


def _job(machine: MachineFacts) -> Iterator[Finding]:
    """The variables of an allocation that has ended, as a terminal multiplexer keeps them."""
    job = machine.environ.get("SLURM_JOB_ID", "")
    if not job:
        return
    text = machine.answer("squeue", "--noheader", "--format=%T", f"--jobs={job}")
    if text is not None and text.strip() not in ("RUNNING", "COMPLETING", "SUSPENDED", "CONFIGURING"):
        yield finding_of("variables_slurm", job=job, state=text.strip() or text_of("variables_slurm.gone"))


def _accelerate(machine: MachineFacts) -> Iterator[Finding]:
    names = [name for name in MISLEADING if machine.environ.get(name)]
    if names:
        key = "variables_accelerate.one" if len(names) == 1 else "variables_accelerate"
        yield finding_of(key, names=", ".join(names), fix=f"unset {' '.join(names)}")
    if machine.environ.get("DS_ACCELERATOR") == "cpu" and machine.gpus:
        yield finding_of("variables_ds_accelerator")


def _slow(machine: MachineFacts) -> Iterator[Finding]:
    for name, slow in toml_beside(__file__, "conditions.toml")["slow"].items():
        value = machine.environ.get(name, "")
        if value.upper() == slow:
            yield finding_of("variables_slow", name=name, value=value, what=text_of(f"variables_slow.{name}"))
