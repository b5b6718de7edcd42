"""What happens on the nodes: interruptions, the environment of the processes, containers, the network."""

from __future__ import annotations

from dataclasses import dataclass

from dsrun.options import option


@dataclass(frozen=True, kw_only=True)
class InterruptionOptions:
    """What the job does at its time limit, when preempted, and when a worker dies."""

    signal_lead: int | None = option(
        None,
        "seconds before the time limit at which the workers save; default: from the time a checkpoint takes",
        group="interruptions",
        metavar="SECONDS",
        least=1,
    )
    requeue: bool = option(
        True, "put an interrupted, unfinished job back into the queue", group="interruptions"
    )
    max_requeues: int = option(
        20,
        "times an interrupted job goes back into the queue at most",
        group="interruptions",
        metavar="N",
        least=0,
    )
    max_restarts: int | None = option(
        None,
        "times all workers are started again within the job after one has died; default run.yaml's, "
        "else the training's own (3), for other programs 0",
        group="interruptions",
        metavar="N",
        least=0,
    )


@dataclass(frozen=True, kw_only=True)
class EnvironmentOptions:
    """What is set up before the program starts."""

    module: tuple[str, ...] = option(
        (), "environment module to load", group="environment", aliases=("modules",), metavar="NAME"
    )
    setup_file: tuple[str, ...] = option(
        (), "shell file to source", group="environment", aliases=("setup",), metavar="FILE"
    )
    conda: str | None = option(
        None, "conda environment to activate, by name or folder", group="environment", metavar="NAME|DIR"
    )
    venv: str | None = option(None, "virtual environment to activate", group="environment", metavar="DIR")
    env: tuple[str, ...] = option(
        (),
        "variable the job needs: NAME is passed on from where sbatch is called, NAME=VALUE stands in the script",
        group="environment",
        metavar="NAME",
    )
    clean_env: bool = option(
        False,
        "pass on nothing of your environment but HOME, USER, LOGNAME, SHELL and --env NAME",
        group="environment",
    )
    stage: str | None = option(
        None,
        "wheel, tar of an environment, or environment folder that is copied to every node's local disk first",
        group="environment",
        metavar="FILE|DIR",
    )
    local_dir: str = option(
        "/tmp", "local disk of the nodes, for --stage", group="environment", metavar="DIR"
    )


@dataclass(frozen=True, kw_only=True)
class ContainerOptions:
    """The image the processes run in."""

    container_image: str | None = option(
        None, "image for pyxis/enroot: a .sqsh file or registry name", group="container", metavar="IMAGE"
    )
    apptainer: str | None = option(
        None, "image for Apptainer: a .sif file, folder or URI", group="container", metavar="IMAGE"
    )
    container_mounts: tuple[str, ...] = option(
        (),
        "folder to see inside, besides that of the job: DIR, or DIR:INSIDE[:ro]",
        group="container",
        aliases=("container_mount",),
        metavar="DIR[:INSIDE]",
    )


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """How the nodes talk."""

    network: str | None = option(
        None,
        "NCCL and gloo settings for one kind of network",
        group="network",
        choices=("infiniband", "roce", "ethernet"),
    )
    interface: str | None = option(
        None,
        "network interface for NCCL and gloo, such as ib0, or ^docker0,lo for all others",
        group="network",
        metavar="NAME",
    )
