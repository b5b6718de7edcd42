"""The job that `dsrun doctor --for run.yaml` checks, resolved as `dsrun train --config` resolves it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dsrun.doctor.machine import Target
from dsrun.errors import DsrunError, UsageError
from dsrun.findings import Finding
from dsrun.recipe.resolve import resolve
from dsrun.recipe.runfile import read_section
from dsrun.slurm.render.spec import make_spec, run_file_value


def job_target(
    run_file: str | None,
    cwd: Path,
    *,
    output: str | None = None,
    nproc: int | None = None,
    master_addr: str | None = None,
    master_port: int | None = None,
) -> Target:
    """The job of a run file, and what the command line says of it. Settings that do not resolve are a finding.

    Raises UsageError where there is no such file.
    """
    folder = Path(output).expanduser() if output else None
    place = Target(output=folder, nproc=nproc, master_addr=master_addr, master_port=master_port, cwd=cwd)
    if run_file is None:
        return place
    if not (cwd / run_file).is_file():
        raise UsageError(f"--for {run_file}: there is no such file", fix="name the run.yaml of a job")
    try:
        recipe = resolve(["--config", run_file], cwd)
        nodes = _slurm_nodes(run_file, cwd)
    except DsrunError as error:
        broken = Finding(level="error", code="settings", message=error.message, fix=error.fix or "")
        return replace(place, refused=broken)
    spec = recipe.spec
    return replace(
        place,
        recipe=recipe,
        output=folder or (Path(spec.output).expanduser() if spec.output else None),
        nproc=nproc or spec.nproc,
        master_port=master_port or spec.master_port,
        nodes=nodes,
    )


def _slurm_nodes(run_file: str, cwd: Path) -> int:
    """Nodes of the run file's `slurm:` section; 0 where it has none."""
    given = [run_file_value(*entry) for entry in read_section(cwd / run_file, run_file, "slurm")]
    return make_spec(given).nodes if given else 0
