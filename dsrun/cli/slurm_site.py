"""What `dsrun render-slurm` knows of the cluster and of earlier runs, and what it has to say about the job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dsrun.cli.output import print_error, print_note
from dsrun.slurm.render.program import Site

if TYPE_CHECKING:
    from dsrun.slurm.cluster.facts import ClusterFacts
    from dsrun.slurm.render.options import SlurmSpec
    from dsrun.slurm.render.program import Program


def find_site(spec: SlurmSpec, program: Program, cwd: Path) -> tuple[Site, ClusterFacts | None]:
    """The site, and the facts of the cluster it comes from; None for these where there is no SLURM."""
    from dsrun.slurm.cluster.discover import discover_if_any

    site = Site(checkpoint_s=checkpoint_seconds(cwd / program.output) if program.output else None)
    facts = discover_if_any(notify=print_note)
    if facts is None:
        return site, None
    partition = spec.partition.partition(",")[0] if spec.partition else None
    return replace(
        site,
        gpus_per_node=facts.usual_gpus(partition) or 0,
        cores_per_gpu=facts.cores_per_gpu(partition),
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
    """What was chosen for the user: `spec` is the completed one of what was `given`."""
    from dsrun.slurm.render.environment import gpus_of, workers

    gpus, count = gpus_of(spec), workers(spec)
    if not cluster:
        yield "no SLURM answers here: nothing is checked against a cluster"
    if given.gpus_per_node != spec.gpus_per_node and gpus:
        source = "as this cluster's nodes have" if cluster else "as nothing says how many the nodes have"
        yield f"{gpus} GPU{'s' * (gpus > 1)} a node, {source} (--gpus-per-node)"
    if gpus == 0:
        yield f"no GPUs: {count} worker{'s' * (count > 1)} a node, on CPUs"
    if spec.signal_lead is None:
        yield f"--time {spec.time} is too short for a signal: nothing is saved before its end"
    elif given.signal_lead is None and site.checkpoint_s is not None:
        took = f"as a checkpoint took {site.checkpoint_s:.0f} s"
        yield f"the workers save {spec.signal_lead} s before the time limit, {took}"


def missing(spec: SlurmSpec, program: Program, cwd: Path) -> Iterator[str]:
    """What the job will look for and this machine does not have; a compute node may."""
    files = [("--setup-file", each) for each in spec.setup_file]
    files += [("--stage", spec.stage)] if spec.stage else []
    files += [("--venv", f"{spec.venv}/bin/activate")] if spec.venv else []
    for flag, name in ((flag, image) for flag, image in _images(spec) if image and image.startswith(("/", "./"))):
        files.append((flag, name))
    if not any(image for _, image in _images(spec)) and program.file:
        files.append(("--", program.file))
    for flag, name in files:
        if not (cwd / name).exists():
            shown = name if name.isprintable() else repr(name)
            where = f"behind --: {shown}" if flag == "--" else f"{flag}: {shown}"
            yield f"{where} is not on this machine; the job needs it on the compute nodes"
    folder = (cwd / spec.log).parent if spec.log else cwd
    if "%" not in str(folder) and not folder.is_dir():
        yield f"--log: SLURM makes no folders, and without {folder} the job has no log: mkdir -p {folder}"


def _images(spec: SlurmSpec) -> tuple[tuple[str, str | None], ...]:
    return ("--apptainer", spec.apptainer), ("--container-image", spec.container_image)


def print_findings(spec: SlurmSpec, facts: ClusterFacts) -> bool:
    """Print what is wrong with a completed spec on this cluster; whether something is an error."""
    from dsrun.slurm.check import check

    findings = check(spec, facts)
    for each in findings:
        line = f"{each.where}: {each.message}" if each.where else each.message
        line += f" ({each.fix})" if each.fix else ""
        (print_error if each.level == "error" else print_note)(line)
    return any(each.level == "error" for each in findings)
