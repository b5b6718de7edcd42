"""The run folder: can it be written, is it free, and do other nodes see it."""

from collections.abc import Iterator

from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.errors import UsageError
from dsrun.findings.finding import Finding
from dsrun.findings.texts import finding_of
from dsrun.runs.folder import refuse_unfit
from dsrun.system.files import nearest_existing


def look(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    """What would keep a run from starting in its folder, `runs/` of the working folder by default."""
    folder = target.output or target.cwd / "runs"
    path = folder if folder.is_absolute() else target.cwd / folder
    try:
        refuse_unfit(path, force=target.output is None or bool(target.recipe and target.recipe.spec.force))
    except UsageError as error:
        yield Finding(level="error", code="run_folder", message=error.message, fix=error.fix or "")
        return
    place = machine.mount(nearest_existing(path))
    if place is None:
        yield finding_of("run_folder.unknown", path=path)
    elif target.nodes > 1 and not place.shared:
        yield finding_of("run_folder_local", path=path, kind=place.kind, nodes=target.nodes)
    elif place.kind in ("tmpfs", "ramfs"):
        yield finding_of("run_folder_memory", path=path, kind=place.kind)
    else:
        yield finding_of("run_folder.shared" if place.shared else "run_folder.local", path=path, kind=place.kind)
