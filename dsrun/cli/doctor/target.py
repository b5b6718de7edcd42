"""The job that `dsrun doctor --for run.yaml` checks, resolved as `dsrun train --config` resolves it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dsrun.cli.output import refusal
from dsrun.doctor.machine_facts import DoctorTarget
from dsrun.errors import DsrunError, UsageError
from dsrun.findings.finding import Finding
from dsrun.recipe.resolve import resolve
from dsrun.recipe.runfile import read_section
from dsrun.slurm.render.spec import make_spec, run_file_value


def job_target(given: Mapping[str, Any], cwd: Path) -> DoctorTarget:
    """The job of a run file, of the flags in `program` ("train --model …"), or of both, with what the command line says
    of it; `given` are its options. Settings that do not resolve are a finding.

    Raises UsageError where there is no such file, and for another program.
    """
    folder = Path(given["output"]).expanduser() if given["output"] else None
    own = {name: given[name] for name in ("nproc", "master_addr", "master_port")}
    place = DoctorTarget(output=folder, cwd=cwd, **own)
    run_file, flags = given["run_file"], _train_flags(given["program"])
    if run_file is None and flags is None:
        return place
    if run_file is not None and not (cwd / run_file).is_file():
        raise UsageError(f"--for {run_file}: there is no such file", fix="name the run.yaml of a job")
    try:
        recipe = resolve([*([] if run_file is None else ["--config", run_file]), *(flags or ())], cwd)
        nodes = _slurm_nodes(recipe.spec.config, cwd)
    except DsrunError as error:
        broken = Finding(level="error", code="settings", message=error.message, fix=error.fix or "")
        return replace(place, refused=broken)
    spec = recipe.spec
    output = folder or (Path(spec.output).expanduser() if spec.output else None)
    nproc, port = place.nproc or spec.nproc, place.master_port or spec.master_port
    return replace(place, recipe=recipe, output=output, nproc=nproc, master_port=port, nodes=nodes)


def _train_flags(program: Sequence[str]) -> Sequence[str] | None:
    words = list(program[1:] if program[:1] == ("dsrun",) else program)
    if not words:
        return None
    if words[0] != "train":
        raise refusal("doctor.program", word=words[0])
    return words[1:]


def _slurm_nodes(run_file: str | None, cwd: Path) -> int:
    """Nodes of the run file's `slurm:` section; 0 where it has none."""
    if run_file is None:
        return 0
    given = [run_file_value(*entry) for entry in read_section(cwd / run_file, run_file, "slurm")]
    return make_spec(given).nodes if given else 0
