"""Every option of a SLURM job, declared once: the rest is derived from these fields and from options.toml."""

from dataclasses import Field, dataclass, fields
from functools import cache
from typing import Any

from dsrun.options import described


@described(__file__)
@dataclass(frozen=True, kw_only=True)
class SlurmSpec:
    """What is asked of a job; `dsrun.slurm.render.job_script.render_script` writes its script.

    In options.toml `sbatch` is the long option of sbatch that gets the value unchanged, `short` its letter; `resource`
    is one that several options ask for, of which the strongest place may name another one than a weaker place;
    `by_sbatch`: --sbatch takes it, too."""

    job_name: str | None = None
    comment: str | None = None
    log: str | None = None
    mail_user: str | None = None
    mail_type: str | None = None
    nodes: int = 1
    ntasks: int | None = None
    ntasks_per_node: int | None = None
    gpus_per_node: str | None = None
    gpus: str | None = None
    gpus_per_task: str | None = None
    gres: str | None = None
    nproc: int | None = None
    cpus_per_task: int | None = None
    cpus_per_gpu: int | None = None
    mem: str | None = None
    mem_per_cpu: str | None = None
    mem_per_gpu: str | None = None
    exclusive: bool = False
    switches: str | None = None
    segment: str | None = None
    time: str | None = None
    constraint: str | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    reservation: str | None = None
    nodelist: str | None = None
    exclude: str | None = None
    licenses: str | None = None
    begin: str | None = None
    dependency: str | None = None
    array: str | None = None
    array_flag: str | None = None
    sbatch: tuple[str, ...] = ()
    signal_lead: int | None = None
    requeue: bool = True
    max_requeues: int | None = None
    max_restarts: int | None = None
    elastic: str | None = None
    rendezvous_timeout: int | None = None
    supervise: bool = True
    notify: tuple[str, ...] = ()
    preflight: bool = False
    min_gpus: int | None = None
    min_gpu_memory: int | None = None
    spare: int = 0
    module: tuple[str, ...] = ()
    setup_file: tuple[str, ...] = ()
    conda: str | None = None
    venv: str | None = None
    env: tuple[str, ...] = ()
    clean_env: bool = False
    inline: bool = False
    stage: str | None = None
    local_dir: str = "/tmp"
    container_image: str | None = None
    apptainer: str | None = None
    container_mounts: tuple[str, ...] = ()
    network: str | None = None
    interface: str | None = None


@cache
def options() -> dict[str, Field[Any]]:
    return {each.name: each for each in fields(SlurmSpec)}
