"""What the cluster and earlier runs provide for a script, and the notes on what was chosen or is missing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dsrun.slurm.render.program import Site

if TYPE_CHECKING:
    from dsrun.slurm.cluster.facts import ClusterFacts
    from dsrun.slurm.render.options import SlurmSpec
    from dsrun.slurm.render.program import Program


# One rank's imports are 66,000 file operations; from here on they take longer than copying the environment.
STAGE_NODES = 16


def find_site(
    spec: SlurmSpec, program: Program, cwd: Path, notify: Callable[[str], None]
) -> tuple[Site, ClusterFacts | None]:
    """The site, and the facts of its cluster; None for these if there is no SLURM."""
    from dsrun.slurm.cluster.discover import discover_if_any

    site = Site(checkpoint_s=checkpoint_seconds(cwd / program.output) if program.output else None)
    facts = discover_if_any(notify)
    if facts is None:
        return site, None
    partition = spec.partition.partition(",")[0] if spec.partition else None
    return replace(
        site,
        gpus_per_node=facts.usual_gpus(partition) or 0,
        cores_per_gpu=facts.cores_per_gpu(partition),
        cwd=str(cwd),
    ), facts


def checkpoint_seconds(folder: Path) -> float | None:
    """Seconds of the slowest checkpoint that the run in `folder` has written; None where it has written none."""
    from dsrun.runs.folder import RunFolder
    from dsrun.runs.records import iter_records

    times = [
        float(record["seconds"])
        for record in iter_records(RunFolder(folder).events)
        if record.get("kind") == "checkpoint_end" and isinstance(record.get("seconds"), (int, float))
    ]
    return max(times, default=None)


def notices(given: SlurmSpec, spec: SlurmSpec, site: Site, *, cluster: bool) -> Iterator[str]:
    """What was chosen for the user: `spec` is `given`, completed."""
    from dsrun.slurm.render.environment import gpus_of, workers

    gpus, count = gpus_of(spec), workers(spec)
    if not cluster:
        yield "no SLURM here: nothing is checked against a cluster"
    if given.gpus_per_node != spec.gpus_per_node and gpus:
        source = "as this cluster's nodes have" if cluster else "as the number per node is not known"
        yield f"{gpus} GPU{'s' * (gpus > 1)} a node, {source} (--gpus-per-node)"
    if spec.nodes >= STAGE_NODES and not (spec.stage or spec.container_image or spec.apptainer):
        yield f"the Python of {spec.nodes} nodes starts from one file system: --stage copies it to their local disks"
    if gpus == 0:
        yield f"no GPUs: {count} worker{'s' * (count > 1)} a node, on CPUs"
    if spec.cpus_per_task and spec.cpus_per_task < count:
        cpus = f"{spec.cpus_per_task} CPU{'s' * (spec.cpus_per_task > 1)}"
        yield f"{cpus} for {count} workers a node: they wait for each other (--cpus-per-task)"
    if spec.signal_lead is None:
        yield f"--time {spec.time} is too short for a signal: the job does not save before its end"
    elif given.signal_lead is None and site.checkpoint_s is not None:
        took = f"as a checkpoint took {site.checkpoint_s:.0f} s"
        yield f"the workers save {spec.signal_lead} s before the time limit, {took}"


def certainly_missing(
    spec: SlurmSpec, program: Program, cwd: Path, environ: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """What a job that is submitted here would end for: the message, and what to do."""
    if not (spec.container_image or spec.apptainer) and program.file and not (cwd / program.file).exists():
        yield f"there is no file {program.file}", "write its path from this folder, or in full"
    for name in (entry for entry in spec.env if "=" not in entry):
        if not environ.get(name):
            yield f"--env {name}: the variable is not set here, and sbatch could not pass it on", f"export {name}=…"
    for flag, value, tool in (("--apptainer", spec.apptainer, "apptainer"), ("--conda", spec.conda, "conda")):
        own_setup = spec.module or spec.setup_file
        if value and not own_setup and shutil.which(tool, path=environ.get("PATH")) is None:
            yield f"{flag} {value}: there is no {tool} here", f"--module NAME, if a module brings {tool}"


def missing(spec: SlurmSpec, program: Program, cwd: Path) -> Iterator[str]:
    """What the job needs and this machine does not have; a compute node may."""
    files = [("--setup-file", each) for each in spec.setup_file]
    files += [("--stage", spec.stage)] if spec.stage else []
    files += [("--venv", f"{spec.venv}/bin/activate")] if spec.venv else []
    flag, image = ("--apptainer", spec.apptainer) if spec.apptainer else ("--container-image", spec.container_image)
    if image and image.startswith(("/", "./")):
        files.append((flag, image))
    if not image and program.file:
        files.append(("--", program.file))
    for flag, name in files:
        if not (cwd / name).exists():
            shown = name if name.isprintable() else repr(name)
            where = f"program: {shown}" if flag == "--" else f"{flag}: {shown}"
            yield f"{where} is not on this machine; the job needs it on the compute nodes"
    folder = (cwd / spec.log).parent if spec.log else cwd
    if "%" not in str(folder) and not folder.is_dir():
        yield f"--log: SLURM does not create {folder}, and without it the job has no log (mkdir -p {folder})"
