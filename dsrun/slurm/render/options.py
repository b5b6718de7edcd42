"""Every option of a SLURM job, declared once: the rest is derived from the declarations.

`sbatch` is the long option of sbatch that gets the value as it stands, `short` sbatch's own letter.
"""

from __future__ import annotations

from dataclasses import Field, dataclass, fields
from functools import cache
from typing import Any

from dsrun.options import option


@dataclass(frozen=True, kw_only=True)
class SlurmSpec:
    """What a job is asked to be; `dsrun.slurm.render.script.render` writes its script."""

    job_name: str | None = option(
        None,
        "name of the job and of its run folder; default: what it runs",
        sbatch="job-name",
        short="J",
        aliases=("name",),
        metavar="NAME",
        group="Job",
    )
    comment: str | None = option(None, "note that stays with the job", sbatch="comment", metavar="TEXT")
    log: str | None = option(
        None,
        "the job's log, with SLURM's own %j, %x …; default slurm-%j.out in the folder of sbatch",
        sbatch="output",
        aliases=("output_pattern",),
        metavar="PATTERN",
    )
    mail_user: str | None = option(
        None, "who gets mail; default of --mail-type: the submitter", sbatch="mail-user", metavar="ADDRESS"
    )
    mail_type: str | None = option(
        None,
        "on what: END,FAIL,REQUEUE,TIME_LIMIT …; END,FAIL,REQUEUE with --mail-user alone",
        sbatch="mail-type",
        metavar="LIST",
    )
    nodes: int = option(1, "nodes", sbatch="nodes", short="N", metavar="N", least=1, group="Resources")
    gpus_per_node: str | None = option(
        None,
        "GPUs of each node, also typed (a100:4); 0: train on CPUs; default: all that the partition's nodes have",
        sbatch="gpus-per-node",
        metavar="[TYPE:]N",
    )
    gres: str | None = option(
        None,
        "GPUs and other generic resources of each node as --gres writes them (gpu:a100:4,nvme:1)",
        sbatch="gres",
        metavar="LIST",
    )
    nproc: int | None = option(
        None,
        "workers of each node; default one per GPU; without GPUs the job trains on CPUs",
        aliases=("nproc_per_node",),
        metavar="N",
        least=1,
    )
    cpus_per_task: int | None = option(
        None,
        "CPUs of each node's one task; default: the share of the cluster's cores that goes with the GPUs",
        sbatch="cpus-per-task",
        short="c",
        metavar="N",
        least=1,
    )
    mem: str | None = option(None, "memory of each node, such as 200G; 0: all of it", sbatch="mem", metavar="SIZE")
    exclusive: bool = option(False, "share the nodes with no other job", sbatch="exclusive")
    time: str | None = option(
        None,
        "time limit: minutes, H:MM:SS, D-HH or D-HH:MM:SS; default: the partition's",
        sbatch="time",
        short="t",
        metavar="TIME",
    )
    constraint: str | None = option(
        None, "features the nodes must have", sbatch="constraint", short="C", metavar="LIST"
    )
    partition: str | None = option(
        None, "partition, or several with commas", sbatch="partition", short="p", metavar="NAME", group="Queue"
    )
    account: str | None = option(None, "account that pays", sbatch="account", short="A", metavar="NAME")
    qos: str | None = option(None, "quality of service", sbatch="qos", short="q", metavar="NAME")
    reservation: str | None = option(None, "reservation to run in", sbatch="reservation", metavar="NAME")
    nodelist: str | None = option(
        None, "nodes that must be among the job's", sbatch="nodelist", short="w", metavar="NODES"
    )
    exclude: str | None = option(None, "nodes that must not", sbatch="exclude", short="x", metavar="NODES")
    licenses: str | None = option(None, "licences the job needs", sbatch="licenses", short="L", metavar="LIST")
    begin: str | None = option(
        None, "start no sooner: 22:00, now+2hours, 2026-12-01", sbatch="begin", short="b", metavar="TIME"
    )
    dependency: str | None = option(
        None, "jobs that must come first: afterok:1234", sbatch="dependency", short="d", metavar="LIST"
    )
    array: str | None = option(
        None,
        "run it once for each number: 0-9, 1,3,7, 0-99%4 (four at a time)",
        sbatch="array",
        short="a",
        metavar="LIST",
    )
    array_flag: str | None = option(
        None, "flag of the program that gets the number of each task of an array, such as --seed", metavar="FLAG"
    )
    sbatch: tuple[str, ...] = option((), "any other option of sbatch, as key=value or key", metavar="KEY=VALUE")
    signal_lead: int | None = option(
        None,
        "seconds before the time limit at which the workers save; default: from the time a checkpoint takes",
        metavar="SECONDS",
        least=1,
        group="Interruptions",
    )
    requeue: bool = option(True, "put an interrupted, unfinished job back into the queue")
    max_requeues: int = option(20, "times an interrupted job goes back into the queue at most", metavar="N", least=0)
    max_restarts: int | None = option(
        None,
        "times all workers are started again within the job after one has died; default run.yaml's, "
        "else the training's own (3), for other programs 0",
        metavar="N",
        least=0,
    )
    module: tuple[str, ...] = option(
        (), "environment module to load", aliases=("modules",), metavar="NAME", group="Environment"
    )
    setup_file: tuple[str, ...] = option((), "shell file to source", aliases=("setup",), metavar="FILE")
    conda: str | None = option(None, "conda environment to activate, by name or folder", metavar="NAME|DIR")
    venv: str | None = option(None, "virtual environment to activate", metavar="DIR")
    env: tuple[str, ...] = option(
        (),
        "variable the job needs: NAME is passed on from where sbatch is called, NAME=VALUE is written into the script",
        metavar="NAME",
    )
    clean_env: bool = option(False, "pass on nothing of your environment but HOME, USER, LOGNAME, SHELL and --env NAME")
    stage: str | None = option(
        None,
        "wheel, tar of an environment, or environment folder that is copied to every node's local disk first",
        metavar="FILE|DIR",
    )
    local_dir: str = option("/tmp", "local disk of the nodes, for --stage", metavar="DIR")
    container_image: str | None = option(
        None, "image for pyxis/enroot: a .sqsh file or registry name", metavar="IMAGE", group="Container"
    )
    apptainer: str | None = option(None, "image for Apptainer: a .sif file, folder or URI", metavar="IMAGE")
    container_mounts: tuple[str, ...] = option(
        (),
        "folder to see inside, besides that of the job: DIR, or DIR:INSIDE[:ro]",
        aliases=("container_mount",),
        metavar="DIR[:INSIDE]",
    )
    network: str | None = option(
        None,
        "NCCL and gloo settings for one kind of network",
        choices=("infiniband", "roce", "ethernet"),
        group="Network",
    )
    interface: str | None = option(
        None, "network interface for NCCL and gloo, such as ib0, or ^docker0,lo for all others", metavar="NAME"
    )


@cache
def options() -> dict[str, Field[Any]]:
    """Every option by its field's name, in the order of its declaration."""
    return {each.name: each for each in fields(SlurmSpec)}
