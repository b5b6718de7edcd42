"""What `dsrun doctor` does on one machine: it runs the checks side by side and prints them as a table.

The job of --for run.yaml is resolved as `dsrun train --config` resolves it."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from dsrun.cli.options import imported
from dsrun.cli.output import print_json
from dsrun.cli.train import flags_after
from dsrun.doctor import registry
from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.errors import EXIT_FINDINGS, DsrunError, UsageError, did_you_mean
from dsrun.findings.checks import Check, as_json, result_lines, run_checks
from dsrun.findings.finding import Finding
from dsrun.launch.detection.detect import in_slurm_step
from dsrun.recipe.resolve import resolve
from dsrun.recipe.runfile import read_section
from dsrun.slurm.render.spec import make_spec, run_file_value
from dsrun.system.terminal.display import terminal_width

COLLECTIVES = "dsrun.cli.doctor.collectives:run_collectives"
JOB_NODES = "dsrun.cli.doctor.job_nodes"


def run(*, form: str, every: bool, only: Sequence[str], skip: Sequence[str], **given: Any) -> int:
    """The callback of `dsrun doctor`."""
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "")
    is_one_of_several = in_slurm_step(os.environ) and tasks.isdigit() and int(tasks) > 1
    on_nodes = given["job_id"] is not None
    if on_nodes:
        imported(f"{JOB_NODES}:refuse")("options", given=given)
        skip = (*skip, *registry.OF_IDLE_MACHINES)
    if not (on_nodes or given["preflight"]) and (
        given["ranks"] is not None or given["nodes"] is not None or is_one_of_several
    ):
        return _collectives(given, form)
    if given["node_rank"] is not None and not given["preflight"]:
        raise UsageError(f"--node-rank {given['node_rank']}, but not of how many", fix="add --nodes N")
    checks = all_checks(given["min_gpus"], given["min_gpu_memory"])
    checks = chosen((*checks, *registry.DEEP_CHECKS) if given["deep"] else checks, only, skip)
    target = job_target(given, Path.cwd())
    if on_nodes and not given["node_checks"]:
        return int(imported(f"{JOB_NODES}:run_on_nodes")(given["job_id"], checks, every=every, form=form))
    quick = [each for each in checks if each not in registry.DEEP_CHECKS]
    results = list(run_checks(quick, MachineFacts(), target, limit_s=registry.LIMIT_S))
    # One after the other: two tests of bandwidth would disturb each other.
    for check in checks[len(quick) :]:
        results += run_checks([check], MachineFacts(), target, limit_s=registry.DEEP_LIMIT_S)
    if given["preflight"]:
        return _collectives(given, form, [each for result in results for each in result.findings])
    if given["node_checks"]:
        click.echo(imported(f"{JOB_NODES}:answer")(results), nl=False)
        return 0
    if form == "json":
        print_json(as_json(results))
    else:
        for line in result_lines(results, every=every, columns=terminal_width(sys.stdout)):
            click.echo(line)
    return EXIT_FINDINGS if any(each.status == "fail" for each in results) else 0


def _collectives(given: Mapping[str, Any], form: str, findings: Sequence[Finding] = ()) -> int:
    """The test between ranks and nodes, with what the checks have found on this one."""
    names = ("ranks", "nodes", "node_rank", "master_addr", "master_port")
    return int(imported(COLLECTIVES)(**{name: given[name] for name in names}, form=form, findings=findings))


def all_checks(min_gpus: int | None, min_gpu_memory: float | None) -> tuple[Check, ...]:
    """The checks in their order; first what this machine must have, where that was said."""
    if min_gpus is None and min_gpu_memory is None:
        return registry.CHECKS
    from dsrun.doctor.launch.network import check_requirements

    def look(machine: MachineFacts, _: Any) -> Any:
        return check_requirements(machine, min_gpus, min_gpu_memory)

    return (Check("requirements", "GPUs that you require", look), *registry.CHECKS)


def chosen(checks: Sequence[Check], only: Sequence[str], skip: Sequence[str]) -> tuple[Check, ...]:
    """Those checks whose codes begin with one of `only`, if there are any, and with none of `skip`.

    Raises UsageError for a beginning that no check has."""
    codes = [each.code for each in checks]
    only, skip = ([name for each in given for name in each.split(",")] for given in (only, skip))
    for flag, names in (("--only", only), ("--skip", skip)):
        for name in names:
            if not name or not any(code.startswith(name) for code in codes):
                raise UsageError(f"{flag} {name}: there is no such check", fix=did_you_mean(name, codes))
    kept = [each for each in checks if not only or each.code.startswith(tuple(only))]
    left = tuple(each for each in kept if not each.code.startswith(tuple(skip)))
    if not left:
        raise UsageError("--only and --skip leave no check", fix="give fewer of them")
    return left


def job_target(given: Mapping[str, Any], cwd: Path) -> DoctorTarget:
    """The job of a run file, of the flags in `program` ("train --model …"), or of both, with what the command line says
    of it; `given` are its options. Settings that do not resolve are a finding.

    Raises UsageError where there is no such file, and for another program."""
    folder = Path(given["output"]).expanduser() if given["output"] else None
    own = {name: given[name] for name in ("nproc", "master_addr", "master_port")}
    place = DoctorTarget(output=folder, cwd=cwd, **own)
    run_file, flags = given["run_file"], flags_after(given["program"])
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


def _slurm_nodes(run_file: str | None, cwd: Path) -> int:
    """Nodes of the run file's `slurm:` section; 0 where it has none."""
    if run_file is None:
        return 0
    given = [run_file_value(*entry) for entry in read_section(cwd / run_file, run_file, "slurm")]
    return make_spec(given).nodes if given else 0
