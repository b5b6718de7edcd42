"""The run folder: can it be written, is it free, and do other nodes see it."""

from __future__ import annotations

from collections.abc import Iterator

from dsrun.doctor.check import Check
from dsrun.doctor.machine import Machine, Target
from dsrun.doctor.mounts import mount_of
from dsrun.errors import UsageError
from dsrun.findings.finding import Finding
from dsrun.messages import Message
from dsrun.runs.folder import refuse_unfit
from dsrun.system.files import nearest_existing


def look(machine: Machine, target: Target) -> Iterator[Finding]:
    """What would keep a run from starting in its folder, `runs/` of the working folder by default."""
    folder = target.output or target.cwd / "runs"
    path = folder if folder.is_absolute() else target.cwd / folder
    try:
        refuse_unfit(path, force=target.output is None or bool(target.recipe and target.recipe.spec.force))
    except UsageError as error:
        yield Finding(level="error", code="run_folder", message=error.message, fix=error.fix or "")
        return
    place = mount_of(machine, nearest_existing(path))
    several = target.nodes > 1
    if place and several and not place.shared:
        yield Finding(
            level="error",
            code="run_folder_local",
            message=Message(
                "{path} is on this node's own {kind}, and the job has {nodes} nodes: the others would not "
                "find its checkpoints",
                path=path,
                kind=place.kind,
                nodes=target.nodes,
            ),
            fix=Message("--output on a file system that all nodes share"),
        )
        return
    if place and place.kind in ("tmpfs", "ramfs"):
        yield Finding(
            level="warning",
            code="run_folder_memory",
            message=Message(
                "{path} is in memory ({kind}): checkpoints are lost with a restart of the machine",
                path=path,
                kind=place.kind,
            ),
            fix=Message("--output on a disk"),
        )
        return
    yield Finding(
        level="info",
        code="run_folder",
        message=Message(
            "{path} can be written"
            if place is None
            else "{path} can be written, on {kind}, which other nodes may see"
            if place.shared
            else "{path} can be written, on {kind}",
            path=path,
            kind=place.kind if place else "",
        ),
    )


RUN_FOLDER = Check(
    "run_folder",
    "run folder",
    look,
    finds="a run folder that is in use, not writable or not a run; one that other nodes do not see, or in memory",
)
