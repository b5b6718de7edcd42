"""What the scheduler is asked for: the job itself, its resources, its place in the queue.

`sbatch` is the long option of sbatch that gets the value as it stands, `short` sbatch's own letter.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsrun.options import option


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """The job as squeue shows it."""

    job_name: str | None = option(
        None,
        "name of the job and of its run folder; default: what it runs",
        group="job",
        sbatch="job-name",
        short="J",
        aliases=("name",),
        metavar="NAME",
    )
    comment: str | None = option(
        None, "note that stays with the job", group="job", sbatch="comment", metavar="TEXT"
    )
    log: str | None = option(
        None,
        "the job's log, with SLURM's own %j, %x …; default slurm-%j.out in the folder of sbatch",
        group="job",
        sbatch="output",
        aliases=("output_pattern",),
        metavar="PATTERN",
    )
    mail_user: str | None = option(
        None,
        "who gets mail; default of --mail-type: the submitter",
        group="job",
        sbatch="mail-user",
        metavar="ADDRESS",
    )
    mail_type: str | None = option(
        None,
        "on what: END,FAIL,REQUEUE,TIME_LIMIT …; END,FAIL,REQUEUE with --mail-user alone",
        group="job",
        sbatch="mail-type",
        metavar="LIST",
    )


@dataclass(frozen=True, kw_only=True)
class ResourceOptions:
    """Nodes and what is wanted of each."""

    nodes: int = option(1, "nodes", group="resources", sbatch="nodes", short="N", metavar="N", least=1)
    gpus_per_node: str | None = option(
        None,
        "GPUs of each node, also typed (a100:4); 0: train on CPUs; default: all that the partition's nodes have",
        group="resources",
        sbatch="gpus-per-node",
        metavar="[TYPE:]N",
    )
    gres: str | None = option(
        None,
        "GPUs and other generic resources of each node as --gres writes them (gpu:a100:4,nvme:1)",
        group="resources",
        sbatch="gres",
        metavar="LIST",
    )
    nproc: int | None = option(
        None,
        "workers of each node; default one per GPU; without GPUs the job trains on CPUs",
        group="resources",
        aliases=("nproc_per_node",),
        metavar="N",
        least=1,
    )
    cpus_per_task: int | None = option(
        None,
        "CPUs of each node's one task; default: the share of the cluster's cores that goes with the GPUs",
        group="resources",
        sbatch="cpus-per-task",
        short="c",
        metavar="N",
        least=1,
    )
    mem: str | None = option(
        None,
        "memory of each node, such as 200G; 0: all of it",
        group="resources",
        sbatch="mem",
        metavar="SIZE",
    )
    exclusive: bool = option(
        False, "share the nodes with no other job", group="resources", sbatch="exclusive"
    )
    time: str | None = option(
        None,
        "time limit: minutes, H:MM:SS, D-HH or D-HH:MM:SS; default: the partition's",
        group="resources",
        sbatch="time",
        short="t",
        metavar="TIME",
    )
    constraint: str | None = option(
        None,
        "features the nodes must have",
        group="resources",
        sbatch="constraint",
        short="C",
        metavar="LIST",
    )


@dataclass(frozen=True, kw_only=True)
class QueueOptions:
    """Where the job waits, on whose account, and for what."""

    partition: str | None = option(
        None,
        "partition, or several with commas",
        group="queue",
        sbatch="partition",
        short="p",
        metavar="NAME",
    )
    account: str | None = option(
        None, "account that pays", group="queue", sbatch="account", short="A", metavar="NAME"
    )
    qos: str | None = option(
        None, "quality of service", group="queue", sbatch="qos", short="q", metavar="NAME"
    )
    reservation: str | None = option(
        None, "reservation to run in", group="queue", sbatch="reservation", metavar="NAME"
    )
    nodelist: str | None = option(
        None,
        "nodes that must be among the job's",
        group="queue",
        sbatch="nodelist",
        short="w",
        metavar="NODES",
    )
    exclude: str | None = option(
        None, "nodes that must not", group="queue", sbatch="exclude", short="x", metavar="NODES"
    )
    licenses: str | None = option(
        None, "licences the job needs", group="queue", sbatch="licenses", short="L", metavar="LIST"
    )
    begin: str | None = option(
        None,
        "start no sooner: 22:00, now+2hours, 2026-12-01",
        group="queue",
        sbatch="begin",
        short="b",
        metavar="TIME",
    )
    dependency: str | None = option(
        None,
        "jobs that must come first: afterok:1234",
        group="queue",
        sbatch="dependency",
        short="d",
        metavar="LIST",
    )
    array: str | None = option(
        None,
        "run it once for each number: 0-9, 1,3,7, 0-99%4 (four at a time)",
        group="queue",
        sbatch="array",
        short="a",
        metavar="LIST",
    )
    array_flag: str | None = option(
        None,
        "flag of the program that gets the number of each task of an array, such as --seed",
        group="queue",
        metavar="FLAG",
    )
    sbatch: tuple[str, ...] = option(
        (), "any other option of sbatch, as key=value or key", group="queue", metavar="KEY=VALUE"
    )
