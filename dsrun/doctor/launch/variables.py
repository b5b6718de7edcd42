"""Variables that an earlier launcher, an allocation or a debugging session left in this shell."""

from __future__ import annotations

from collections.abc import Iterator

from dsrun.doctor.check import Check, failure, fine, warning
from dsrun.doctor.machine import Machine, Target
from dsrun.errors import DsrunError
from dsrun.findings.finding import Finding
from dsrun.launch.context import LaunchRequest
from dsrun.launch.detection.slurm import in_slurm_step
from dsrun.launch.detection.started import launcher_of
from dsrun.messages import Message
from dsrun.system.env import worker_from_env
from dsrun.system.variables import MISLEADING

_WORKER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
# What is good for finding an error, and slows down whatever runs with it: (variable, values, what it does).
_SLOW = (
    ("CUDA_LAUNCH_BLOCKING", ("1",), Message("waits for each kernel: training is several times slower")),
    ("NCCL_P2P_DISABLE", ("1",), Message("sends everything between GPUs through the host")),
    ("NCCL_IB_DISABLE", ("1",), Message("keeps NCCL off InfiniBand: TCP instead")),
    ("NCCL_SHM_DISABLE", ("1",), Message("keeps NCCL off shared memory: the network instead")),
    ("NCCL_DEBUG", ("TRACE",), Message("writes a line for each call of NCCL")),
    ("TORCH_DISTRIBUTED_DEBUG", ("DETAIL",), Message("compares every collective between all ranks first")),
)


def look(machine: Machine, _: Target) -> Iterator[Finding]:
    """What would make `dsrun train` here a rank of a run that is not there, train without DeepSpeed, or slowly."""
    found = [*_worker(machine), *_job(machine), *_accelerate(machine), *_slow(machine)]
    yield from found
    if not found:
        yield fine("variables", Message("none of an earlier launcher or debugging session"))


def _worker(machine: Machine) -> Iterator[Finding]:
    environ = machine.environ
    if launcher_of(LaunchRequest(), environ):  # A pod's own, which `dsrun launch` reads.
        return
    left = [name for name in _WORKER if environ.get(name, "").strip()]
    unset = f"unset {' '.join(left)}"
    try:
        worker = worker_from_env(environ)
    except DsrunError as error:
        yield failure("variables_worker", error.message, unset if left else error.fix or "")
        return
    if worker is not None and not in_slurm_step(environ):
        yield failure(
            "variables_worker",
            Message(
                "RANK={rank} and WORLD_SIZE={world_size} are set: `dsrun train` would join that run as one "
                "rank, and wait for the others",
                rank=worker.rank,
                world_size=worker.world_size,
            ),
            Message("{unset}, unless torchrun starts this", unset=unset),
        )


def _job(machine: Machine) -> Iterator[Finding]:
    """The variables of an allocation that has ended, as a terminal multiplexer keeps them."""
    job = machine.environ.get("SLURM_JOB_ID", "")
    if not job:
        return
    text = machine.answer("squeue", "--noheader", "--format=%T", f"--jobs={job}")
    if text is not None and text.strip() not in ("RUNNING", "COMPLETING", "SUSPENDED", "CONFIGURING"):
        state = text.strip() or Message("not in the queue")
        yield failure(
            "variables_slurm",
            Message(
                "SLURM_JOB_ID is {job}, and that job is {state}: srun and `dsrun launch` would use what has ended",
                job=job,
                state=state,
            ),
            Message("log in again, or unset ${!SLURM_*}"),
        )


def _accelerate(machine: Machine) -> Iterator[Finding]:
    names = [name for name in MISLEADING if machine.environ.get(name)]
    if names:
        yield warning(
            "variables_accelerate",
            Message(
                "{names} is set: the Trainer of other scripts silently drops DeepSpeed or changes the "
                "precision; `dsrun train` removes them"
                if len(names) == 1
                else "{names} are set: the Trainer of other scripts silently drops DeepSpeed or changes the "
                "precision; `dsrun train` removes them",
                names=", ".join(names),
            ),
            f"unset {' '.join(names)}",
        )
    if machine.environ.get("DS_ACCELERATOR") == "cpu" and machine.gpus:
        yield failure(
            "variables_ds_accelerator",
            Message("DS_ACCELERATOR=cpu is set, and there are GPUs: DeepSpeed would not use them"),
            "unset DS_ACCELERATOR",
        )


def _slow(machine: Machine) -> Iterator[Finding]:
    for name, values, what in _SLOW:
        value = machine.environ.get(name, "")
        if value.upper() in values:
            message = Message("{name}={value} {what}", name=name, value=value, what=what)
            yield warning("variables_slow", message, f"unset {name}")


VARIABLES = Check(
    "variables",
    "left-over variables",
    look,
    finds="RANK and its kin, a SLURM job that has ended, ACCELERATE_* and DS_ACCELERATOR, and what slows training down",
)
