"""What `dsrun render-slurm` does: the sbatch script of a job on stdout, advice on stderr."""

import os
import pwd
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dsrun.cli.output import print_advice, write_file
from dsrun.cli.render.rendered_job import JobRendering, find_job, given_options, refuse_empty
from dsrun.errors import EXIT_FINDINGS, UsageError
from dsrun.findings.finding import has_errors
from dsrun.slurm.render.environment import uses_own_python, workers
from dsrun.slurm.render.job_script import completed, render_script, template_text
from dsrun.slurm.render.options import SlurmSpec
from dsrun.slurm.render.site import find_site, missing_here, notices
from dsrun.slurm.render.spec import make_spec, run_file_value
from dsrun.system.terminal.stderr import print_error, print_note

if TYPE_CHECKING:
    from dsrun.recipe.recipe import Recipe

SLURM = JobRendering(
    noun="script",
    section="slurm",
    token_fix="put it into a variable and name the variable with --env",
    training_token_fix="export HF_TOKEN=… where you call sbatch",
    run_file_value=run_file_value,
)


def run(**values: Any) -> int:
    """Write, submit or test the script; the callback of `dsrun render-slurm`."""
    if values["show_template"]:
        click.echo(template_text(), nl=False)
        return 0
    refuse_empty(values)
    if values["test_only"] and (values["submit"] or values["follow"]):
        raise UsageError("--test-only does not go with --submit or --follow", fix="remove one of them")
    script, sound = _script(values, Path.cwd())
    if not sound and not values["force"]:
        print_error("not rendered because of errors; --force renders it anyway")
        return EXIT_FINDINGS
    return _deliver(script, values)


def _script(values: dict[str, Any], cwd: Path) -> tuple[str, bool]:
    """The script, and whether the cluster, if there is one, could run it."""
    job = find_job(click.get_current_context().obj, values["config"], cwd, SLURM)
    given = make_spec(*given_options(job, SlurmSpec, values, cwd, SLURM))
    site, facts = find_site(given, job.program, cwd, print_note)
    site = replace(site, user=_user_name(), command=("dsrun", *sys.argv[1:]))
    template = _read(values["template"]) if values["template"] else None
    script = render_script(given, job.program, site, template)
    spec = completed(given, job.program, site)
    if job.recipe is not None:
        _check_training(job.recipe, spec)
    for line in notices(given, spec, job.program, site, cluster=facts is not None):
        print_note(line)
    findings = list(missing_here(spec, job.program, cwd, os.environ, on_cluster=facts is not None))
    if facts is not None:
        from dsrun.slurm.job_check import check

        findings += check(spec, facts)
    print_advice(findings)
    return script, not has_errors(findings)


def _user_name() -> str:
    """As getpass.getuser(), whose module also loads that of terminals."""
    named = filter(None, map(os.environ.get, ("LOGNAME", "USER", "LNAME", "USERNAME")))
    return next(named, None) or pwd.getpwuid(os.getuid()).pw_name


def _check_training(recipe: "Recipe", spec: SlurmSpec) -> None:
    """Raise now what `dsrun train` would raise on the nodes. `spec` is the completed one.

    Checks files unless an image provides them, and packages if the workers use the Python that renders."""
    from dsrun.cli.render.training import check_training

    check_training(
        recipe,
        spec.nodes,
        workers(spec),
        elastic=spec.elastic,
        files=not (spec.container_image or spec.apptainer),
        packages=uses_own_python(spec),
    )


def _read(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise UsageError(f"--template {name}: {reason}", fix="--show-template prints one to start from") from None


def _deliver(script: str, values: dict[str, Any]) -> int:
    """Write the script to stdout or a file, or submit it."""
    content = script.encode("utf-8", "surrogateescape")
    if values["output"] is not None:
        path = Path(values["output"])
        if "%" in path.name:
            raise UsageError(f"-o {path} names the script's own file", fix="the pattern of the job's log is --log")
        write_file(path, content, force=values["force"], executable=True)
    if values["test_only"] or values["submit"] or values["follow"]:
        from dsrun.slurm.jobs.submit import submit, test_only

    if values["test_only"]:
        click.echo(test_only(script))
        return 0
    if values["submit"] or values["follow"]:
        number = submit(script, notify=print_note)
        click.echo(number)
        if values["follow"]:
            from dsrun.cli.slurm.jobs import follow_job

            return follow_job(number, log_to_stderr=True)
        return 0
    if values["output"] is None:
        click.echo(content, nl=False)
    return 0
