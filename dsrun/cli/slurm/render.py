"""`dsrun render-slurm`: its options, which are those of SlurmSpec. What it does is in script.py."""

from __future__ import annotations

import click

from dsrun.cli.options import HYPHENS, Command, field_option, lazy_callback, write_grouped_options
from dsrun.errors import UsageError
from dsrun.options import by_group
from dsrun.slurm.render.options import SlurmSpec, options

HELP = """Write the sbatch script of a job: `dsrun render-slurm --nodes 4 | sbatch`.

The command after `--` runs on every GPU: `-- train --model …`, `-- python my_train.py …`, `-- ./program …`.
The default is run.yaml of this folder, or else the demo.
"""
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
        words = list(own)  # click empties it
        if own not in (["--help"], ["-h"]):
            from dsrun.slurm.render.sbatch_flags import translate

            words = translate(own)
        try:
            return super().parse_args(ctx, words)
        except click.UsageError as error:
            if "unexpected extra argument" not in error.message and "train" not in own:
                raise
            raise UsageError("write the program after --", fix="dsrun render-slurm --nodes 4 -- train …") from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        titles = {each.name: title for title, found in by_group(SlurmSpec).items() for each in found}
        write_grouped_options(self, ctx, formatter, titles)


command = RenderCommand(
    name="render-slurm",
    help=HELP,
    callback=lazy_callback("dsrun.cli.slurm.script:run"),
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
