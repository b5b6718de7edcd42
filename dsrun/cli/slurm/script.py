"""What `dsrun render-slurm` does: the sbatch script of a job on stdout, advice on stderr."""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from dsrun.cli.output import print_error, print_note, write_file
from dsrun.errors import EXIT_FINDINGS, UsageError
from dsrun.findings import Finding
from dsrun.options import flag_of
from dsrun.slurm.render.launchers import refuse_scripts
from dsrun.slurm.render.login_node import missing_here
from dsrun.slurm.render.options import options
from dsrun.slurm.render.program import Program, any_program
from dsrun.slurm.render.script import completed, render, template_text
from dsrun.slurm.render.site import find_site, notices
from dsrun.slurm.render.spec import OptionValue, make_spec, run_file_value
from dsrun.system.display import MASK, masked
from dsrun.system.translation import translated

if TYPE_CHECKING:
    from dsrun.recipe.recipe import Recipe

RUN_FILE = "run.yaml"
DEMO = ("--model", "demo-t5", "--zero", "2")


class RenderedProgram(NamedTuple):
    """What a script runs: the program, and the run.yaml whose `slurm:` section applies, as the user wrote its path.

    `recipe` is that of dsrun's own training.
    """

    program: Program
    config: str | None
    recipe: Recipe | None = None


def find_job(args: Sequence[str], config: str | None, cwd: Path) -> RenderedProgram:
    """What runs: the arguments after `--`, else the run file, else the demo. Raises UsageError for wrong flags."""
    here = RUN_FILE if (cwd / RUN_FILE).is_file() else None
    if tuple(args[:2]) == ("dsrun", "train"):
        args = args[1:]
    if args and args[0] == "train":
        return _train(args[1:], config or here, cwd)
    if args:
        _refuse_tokens(args)
        refuse_scripts(args, cwd)
        return RenderedProgram(program=any_program(args), config=config or here)
    if config or here:
        name = str(config or here)
        from dsrun.cli.slurm.training import refuse_no_training

        refuse_no_training(name, cwd)
        print_note(f"no command after --: the job runs {name}")
        return _train(["--config", str((cwd / name).absolute())], name, cwd)
    print_note(f"no command after --, and no {RUN_FILE} here: the job trains the demo")
    return _train(DEMO, None, cwd)


def _train(args: Sequence[str], config: str | None, cwd: Path) -> RenderedProgram:
    """dsrun's own training; `config` is the run file here or that of --config."""
    from dsrun.cli.slurm.training import training_of  # the flags of training, which other programs do without

    recipe, program = training_of(args, cwd)
    return RenderedProgram(program=program, config=recipe.spec.config or config, recipe=recipe)


def _refuse_tokens(args: Sequence[str]) -> None:
    for before, arg, shown in zip(("", *args), args, masked(args), strict=False):
        if arg != shown:
            what = f"{before} has a value that" if shown == MASK and before.startswith("-") else f"{arg[:6]}…"
            raise UsageError(
                f"{what} looks like a token, and everybody can read a job's script",
                fix="put it into a variable and name the variable with --env",
            )


def from_run_file(config: str | None, cwd: Path) -> tuple[OptionValue, ...]:
    """The options of the run file's `slurm:` section, and max_restarts of its `launch:` section."""
    if config is None:
        return ()
    from dsrun.recipe.runfile import read_section  # PyYAML, only where it is needed

    path = cwd / config
    given = [run_file_value(key, values, where) for key, values, where in read_section(path, config, "slurm")]
    restarts = [
        OptionValue(name="max_restarts", values=tuple(values), where=where)
        for key, values, where in read_section(path, config, "launch")
        if key.replace("-", "_") == "max_restarts" and all(each.name != "max_restarts" for each in given)
    ]
    if given:
        print_note(f"options from the slurm section of {config}: {', '.join(each.name for each in given)}")
    return (*given, *restarts)


def run(**values: Any) -> int:
    """Write, submit or test the script; the callback of `dsrun render-slurm`."""
    if values["show_template"]:
        click.echo(template_text(), nl=False)
        return 0
    _check_flags(values)
    script, sound = _script(values, Path.cwd())
    if not sound and not values["force"]:
        print_error("not rendered because of errors; --force renders it anyway")
        return EXIT_FINDINGS
    return _deliver(script, values)


def _check_flags(values: dict[str, Any]) -> None:
    for name in ("output", "config", "template"):
        if values[name] == "":
            raise UsageError(f"--{name} is empty", fix="name a file, or remove it")
    if values["test_only"] and (values["submit"] or values["follow"]):
        raise UsageError("--test-only does not go with --submit or --follow", fix="remove one of them")


def _script(values: dict[str, Any], cwd: Path) -> tuple[str, bool]:
    """The script, and whether the cluster, if there is one, could run it."""
    job = find_job(click.get_current_context().obj, values["config"], cwd)
    given = make_spec(_from_flags(values), from_run_file(job.config, cwd))
    site, facts = find_site(given, job.program, cwd, print_note)
    site = replace(site, user=getpass.getuser(), command=("dsrun", *sys.argv[1:]))
    template = _read(values["template"]) if values["template"] else None
    script = render(given, job.program, site, template)
    spec = completed(given, job.program, site)
    if job.recipe is not None:
        from dsrun.cli.slurm.training import check_training

        check_training(job.recipe, spec)
    for line in notices(given, spec, job.program, site, cluster=facts is not None):
        print_note(line)
    findings = list(missing_here(spec, job.program, cwd, os.environ, on_cluster=facts is not None))
    if facts is not None:
        from dsrun.slurm.check import check

        findings += check(spec, facts)
    return script, _print_findings(findings)


def _print_findings(findings: Iterable[Finding]) -> bool:
    """Print what is wrong with a job; returns whether none of it is an error."""
    sound = True
    for each in findings:
        message, fix = translated(each.message), translated(each.fix)
        line = f"{each.where}: {message}" if each.where else message
        line += f" ({fix})" if fix else ""
        (print_error if each.level == "error" else print_note)(line)
        sound = sound and each.level != "error"
    return sound


def _from_flags(values: dict[str, Any]) -> Iterable[OptionValue]:
    """The options of the command line, unconverted."""
    ctx = click.get_current_context()
    for name, each in options().items():
        if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            value = values[name]
            several = value if isinstance(value, tuple) else (str(value).lower() if isinstance(value, bool) else value,)
            yield OptionValue(name=name, values=several, where=flag_of(each))


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
    # None where stdout is closed: click.echo is silent then, too.
    if values["output"] is None and sys.stdout is not None:
        sys.stdout.buffer.write(content)
    return 0
