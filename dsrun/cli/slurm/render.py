"""`dsrun render-slurm`: the sbatch script of a job on stdout, advice on stderr."""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from dsrun.cli.launch.job import batch_of, with_deepspeed_checked
from dsrun.cli.options import HYPHENS, Command, field_option, write_grouped_options
from dsrun.cli.output import print_error, print_note, write_file
from dsrun.cli.slurm.jobs import follow_job
from dsrun.errors import EXIT_FINDINGS, UsageError
from dsrun.findings import Finding
from dsrun.options import by_group, flag_of
from dsrun.recipe.deepspeed_file import with_deepspeed_read
from dsrun.recipe.parsed_value import COMMAND_LINE
from dsrun.recipe.preflight.files import check_files
from dsrun.recipe.preflight.packages import check_packages
from dsrun.recipe.recipe import DEFAULT, Recipe
from dsrun.recipe.resolve import resolve
from dsrun.recipe.resolved import frozen_argv
from dsrun.slurm.check import check
from dsrun.slurm.jobs.submit import submit, test_only
from dsrun.slurm.render.environment import uses_own_python, workers
from dsrun.slurm.render.launchers import refuse_scripts
from dsrun.slurm.render.login_node import missing_here
from dsrun.slurm.render.options import SlurmSpec, options
from dsrun.slurm.render.program import Program, any_program, train_program
from dsrun.slurm.render.sbatch_flags import translate
from dsrun.slurm.render.script import completed, render, template_text
from dsrun.slurm.render.site import find_site, notices
from dsrun.slurm.render.spec import OptionValue, make_spec, run_file_value
from dsrun.system.display import MASK, masked

RUN_FILE = "run.yaml"
DEMO = ("--model", "demo-t5", "--zero", "2")


@dataclass(frozen=True, kw_only=True)
class RenderedProgram:
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
        _refuse_no_training(name, cwd)
        print_note(f"no command after --: the job runs {name}")
        return _train(["--config", str((cwd / name).absolute())], name, cwd)
    print_note(f"no command after --, and no {RUN_FILE} here: the job trains the demo")
    return _train(DEMO, None, cwd)


def _refuse_no_training(name: str, cwd: Path) -> None:
    """A run file may hold only the options that a site uses for every job."""
    from dsrun.recipe.runfile import read_run_file  # PyYAML, only where it is needed

    if not {"model", "model_type", "config_name"} & {each.name for each in read_run_file(cwd / name, name)}:
        raise UsageError(
            f"no command after --, and {name} does not name a model to train",
            fix="add train: {model: …} to it, or write -- train --model demo-t5",
        )


def _train(args: Sequence[str], config: str | None, cwd: Path) -> RenderedProgram:
    recipe = resolve(args, cwd)
    for name in ("token", "hub_token"):
        if recipe.given(name) and recipe.sources[name] == "command line":
            raise UsageError(
                f"--{name.replace('_', '-')} would be written into the script, which everybody can read",
                fix="export HF_TOKEN=… where you call sbatch",
            )
    if recipe.spec.explain or recipe.spec.dry_run:
        raise UsageError("--explain and --dry-run of dsrun train do not start a job", fix="remove them")
    for notice in recipe.notices:
        print_note(notice)
    name = recipe.spec.model or recipe.spec.model_type or "train"
    if any(source not in (COMMAND_LINE, DEFAULT) for source in recipe.sources.values()):
        # The job may start tomorrow, and again after a requeue: by what run.yaml says now.
        args = frozen_argv(with_deepspeed_read(recipe, cwd))
    program = train_program(
        args,
        output=recipe.spec.output,
        name=name.rstrip("/").rpartition("/")[2],
        on_cpu=bool(recipe.hf.get("use_cpu")),
    )
    return RenderedProgram(program=program, config=recipe.spec.config or config, recipe=recipe)


def check_training(recipe: Recipe, spec: SlurmSpec) -> None:
    """Raise now what `dsrun train` would raise on the nodes. `spec` is the completed one.

    Checks files unless an image provides them, and packages if the workers use the Python that renders.
    """
    world_size = spec.nodes * workers(spec)
    if not (spec.container_image or spec.apptainer):
        check_files(recipe.spec, generation_config=recipe.hf.get("generation_config"))
        recipe = with_deepspeed_checked(recipe, world_size)
    if uses_own_python(spec):
        check_packages(recipe)
    batch_of(recipe, world_size)


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


HETJOB = (
    "all nodes of a job must be alike: one torch.distributed.run a node starts the same number of workers "
    "everywhere, and a heterogeneous job has several such groups"
)


class RenderCommand(Command):
    """Keeps the arguments after `--` apart; click would drop the `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own, program = (args[: args.index("--")], args[args.index("--") + 1 :]) if "--" in args else (args, [])
        for arg in own:
            if arg == ":" or arg.startswith(("--het-group", "--pack-group")):
                raise UsageError(f"{arg}: heterogeneous jobs are not supported", fix=HETJOB)
        ctx.obj = program
        try:
            return super().parse_args(ctx, translate(own))
        except click.UsageError as error:
            if "unexpected extra argument" not in error.message and "train" not in own:
                raise
            raise UsageError("write the program after --", fix="dsrun render-slurm --nodes 4 -- train …") from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        titles = {each.name: title for title, found in by_group(SlurmSpec).items() for each in found}
        write_grouped_options(self, ctx, formatter, titles)


def run(**values: Any) -> int:
    """Write the sbatch script of a job: `dsrun render-slurm --nodes 4 | sbatch`.

    The command after `--` runs on every GPU: `-- train --model …`, `-- python my_train.py …`, `-- ./program …`.
    The default is run.yaml of this folder, or else the demo.
    """
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
        check_training(job.recipe, spec)
    for line in notices(given, spec, job.program, site, cluster=facts is not None):
        print_note(line)
    findings = list(missing_here(spec, job.program, cwd, os.environ, on_cluster=facts is not None))
    return script, _print_findings([*findings, *(check(spec, facts) if facts else ())])


def _print_findings(findings: Iterable[Finding]) -> bool:
    """Print what is wrong with a job; returns whether none of it is an error."""
    sound = True
    for each in findings:
        line = f"{each.where}: {each.message}" if each.where else each.message
        line += f" ({each.fix})" if each.fix else ""
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
    if values["test_only"]:
        click.echo(test_only(script))
        return 0
    if values["submit"] or values["follow"]:
        number = submit(script, notify=print_note)
        click.echo(number)
        return follow_job(number, log_to_stderr=True) if values["follow"] else 0
    # None where stdout is closed: click.echo is silent then, too.
    if values["output"] is None and sys.stdout is not None:
        sys.stdout.buffer.write(content)
    return 0


command = RenderCommand(
    name="render-slurm",
    help=run.__doc__,
    callback=run,
    params=[
        *(field_option(each, {}) for each in options().values()),
        click.Option(["-o", "--output"], metavar="FILE", help="write the script into this file instead of stdout"),
        click.Option(["--force"], is_flag=True, help="replace the file; render despite errors"),
        click.Option(["--config"], metavar="FILE", help="run.yaml to run, and whose slurm section applies"),
        click.Option(["--template"], metavar="FILE", help="your own Jinja2 template"),
        click.Option(["--show-template"], is_flag=True, help="print the shipped template"),
        click.Option(["--submit"], is_flag=True, help="submit the job and print its ID"),
        click.Option(["--follow"], is_flag=True, help="submit the job, show its log to its end, exit with its code"),
        click.Option(["--test-only"], is_flag=True, help="query whether and when the scheduler would start it"),
    ],
    context_settings=HYPHENS,
    epilog="docs/slurm.md explains every option.",
)
