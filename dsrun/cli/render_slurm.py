"""`dsrun render-slurm`: the sbatch script of a job on stdout, advice on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import Field
from pathlib import Path
from typing import Any

import click

from dsrun.cli.output import print_error, print_note, write_file
from dsrun.errors import EXIT_FINDINGS, UsageError
from dsrun.slurm.render.options import GROUPS, flag_of, group_of, kind_of, options
from dsrun.slurm.render.spec import Given, make_spec

HETJOB = (
    "all nodes of a job must be alike: one torch.distributed.run a node starts the same number of workers "
    "everywhere, and a heterogeneous job has several such groups"
)


class RenderCommand(click.Command):
    """Takes what stands behind `--` as it is; click would lose whether there was one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own, behind = (args[: args.index("--")], args[args.index("--") + 1 :]) if "--" in args else (args, [])
        for word in own:
            if word == ":" or word.startswith(("--het-group", "--pack-group")):
                raise UsageError(f"{word}: heterogeneous jobs are not rendered", fix=HETJOB)
        ctx.obj = behind
        try:
            return super().parse_args(ctx, list(own))
        except click.UsageError as error:
            if "unexpected extra argument" not in error.message and "train" not in own:
                raise
            raise UsageError("a program stands behind --", fix="dsrun render-slurm --nodes 4 -- train …") from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {title: [] for title in (*GROUPS, "Output")}
        for each in self.get_params(ctx):
            record = each.get_help_record(ctx)
            if record:
                groups[group_of(each.name) if each.name in options() else "Output"].append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)


def click_option(each: Field[Any]) -> click.Option:
    """The command-line option of one field of SlurmSpec. Its words stay words: the spec converts them."""
    meta, kind = each.metadata, kind_of(each)
    flag = flag_of(each.name)
    if kind == "bool":
        return click.Option([f"{flag}/--no-{flag[2:]}", each.name], default=each.default, help=meta["help"])
    names = [flag, *("--" + alias.replace("_", "-") for alias in meta["aliases"])]
    short = [f"-{meta['short']}"] if "short" in meta else []
    shown = each.default not in (None, ()) and kind != "list"
    return click.Option(
        [*short, *names, each.name],
        type=click.Choice(meta["choices"]) if meta["choices"] else click.STRING,
        default=str(each.default) if shown else None,
        show_default=shown,
        metavar=meta["metavar"],
        multiple=kind == "list",
        help=meta["help"] + ("; may be repeated" if kind == "list" else ""),
    )


def _own_options() -> Sequence[click.Option]:
    return (
        click.Option(["-o", "--output"], metavar="FILE", help="write the script into this file instead of stdout"),
        click.Option(["--force"], is_flag=True, help="replace the file; render in spite of findings"),
        click.Option(["--config"], metavar="FILE", help="run.yaml to run and to read the slurm section of"),
        click.Option(["--template"], metavar="FILE", help="your own Jinja2 template"),
        click.Option(["--show-template"], is_flag=True, help="print the shipped template"),
        click.Option(["--submit"], is_flag=True, help="submit the job and print its number"),
        click.Option(["--follow"], is_flag=True, help="submit it, show its log to the end, pass its result on"),
        click.Option(["--test-only"], is_flag=True, help="ask the scheduler whether and when it would start"),
    )


def run(**values: Any) -> int:
    """Write the sbatch script of a job: `dsrun render-slurm --nodes 4 | sbatch`.

    What stands behind `--` runs on every GPU: `-- train --model …`, `-- python my_train.py …`, `-- ./program …`.
    Without it run.yaml of this folder, else the demo.
    """
    from dsrun.slurm.render.script import template_text

    if values["show_template"]:
        click.echo(template_text(), nl=False)
        return 0
    _check_flags(values)
    script, sound = _script(values, Path.cwd())
    if not sound and not values["force"]:
        print_error("not rendered; --force does it all the same")
        return EXIT_FINDINGS
    return _deliver(script, values)


def _check_flags(values: dict[str, Any]) -> None:
    for name in ("output", "config", "template"):
        if values[name] == "":
            raise UsageError(f"--{name} is empty", fix="name a file, or leave it away")
    if values["test_only"] and (values["submit"] or values["follow"]):
        raise UsageError("--test-only starts nothing, and --submit and --follow do", fix="leave one of them away")


def _script(values: dict[str, Any], cwd: Path) -> tuple[str, bool]:
    """The script, and whether the cluster, where there is one, could run it."""
    from dsrun.cli.slurm_job import check_training, find_job, from_run_file
    from dsrun.cli.slurm_site import find_site, missing, notices, print_findings
    from dsrun.slurm.render.script import completed, render

    job = find_job(click.get_current_context().obj, values["config"], cwd)
    given = make_spec(_from_flags(values), from_run_file(job.config, cwd))
    site, facts = find_site(given, job.program, cwd)
    template = _read(values["template"]) if values["template"] else None
    script = render(given, job.program, site, template)
    spec = completed(given, job.program, site)
    if job.recipe is not None:
        check_training(job.recipe, spec)
    for line in (*notices(given, spec, site, cluster=facts is not None), *missing(spec, job.program, cwd)):
        print_note(line)
    return script, facts is None or not print_findings(spec, facts)


def _from_flags(values: dict[str, Any]) -> Iterable[Given]:
    """What was given on the command line, as words."""
    ctx = click.get_current_context()
    for name in options():
        if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            value = values[name]
            if isinstance(value, bool):
                yield Given(name=name, words=(str(value).lower(),), where=flag_of(name))
            else:
                yield Given(
                    name=name,
                    words=tuple(value) if isinstance(value, tuple) else (value,),
                    where=flag_of(name),
                )


def _read(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise UsageError(f"--template {name}: {reason}", fix="--show-template prints one to start from") from None


def _deliver(script: str, values: dict[str, Any]) -> int:
    """To stdout, into a file, or to sbatch."""
    content = script.encode("utf-8", "surrogateescape")
    if values["output"] is not None:
        path = Path(values["output"])
        if "%" in path.name:
            raise UsageError(f"-o {path} names the script's own file", fix="the pattern of the job's log is --log")
        write_file(path, content, force=values["force"], executable=True)
    if values["test_only"]:
        from dsrun.slurm.jobs.submit import test_only

        click.echo(test_only(script))
        return 0
    if values["submit"] or values["follow"]:
        return _submit(script, follow=values["follow"])
    # None where stdout is closed: click.echo is silent then, too.
    if values["output"] is None and sys.stdout is not None:
        sys.stdout.buffer.write(content)
    return 0


def _submit(script: str, *, follow: bool) -> int:
    from dsrun.slurm.jobs.submit import submit

    number = submit(script, notify=print_note)
    click.echo(number)
    if not follow:
        return 0
    from dsrun.cli.jobs import follow_job

    return follow_job(number, log_to_stderr=True)


command = RenderCommand(
    name="render-slurm",
    callback=run,
    params=[*map(click_option, options().values()), *_own_options()],
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda word: word.replace("_", "-"),
    },
    epilog="docs/slurm.md explains every option.",
)
