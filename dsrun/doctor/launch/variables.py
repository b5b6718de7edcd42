"""Variables that an earlier launcher, an allocation or a debugging session left in this shell."""

from collections.abc import Iterator

from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.errors import DsrunError
from dsrun.findings.finding import Finding
from dsrun.findings.texts import finding_of, text_of
from dsrun.launch.context import LaunchRequest
from dsrun.launch.detection.slurm import in_slurm_step
from dsrun.launch.detection.started import launcher_of
from dsrun.system.env import worker_from_env
from dsrun.system.variables import MISLEADING

_WORKER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
# What is good for finding an error, and slows down whatever runs with it.
_SLOW = {
    "CUDA_LAUNCH_BLOCKING": "1",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_IB_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_DEBUG": "TRACE",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
}


def look(machine: MachineFacts, _: DoctorTarget) -> Iterator[Finding]:
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
    for name, slow in _SLOW.items():
        value = machine.environ.get(name, "")
        if value.upper() == slow:
            yield finding_of("variables_slow", name=name, value=value, what=text_of(f"variables_slow.{name}"))
