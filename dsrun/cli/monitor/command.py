"""The options of `dsrun monitor`."""

import click

from dsrun.cli.options import Command, format_option, lazy_callback

command = format_option(lazy_callback("dsrun.cli.monitor.run:monitor"))
for decorate in (
    click.option("--once", is_flag=True, help="print the present state and exit"),
    click.option(
        "--interval", type=click.FloatRange(min=0.2, max=3600), default=2.0, show_default=True, metavar="S",
        help="seconds between two looks",
    ),
    click.option("--job", "job_id", metavar="ID", help="the run of this SLURM job, also while it waits in the queue"),
    click.option("--log", metavar="FILE", help="the log of another trainer; - reads standard input"),
    click.argument("run", required=False, metavar="[RUN]"),
):  # fmt: skip
    command = decorate(command)
command = click.command(
    cls=Command,
    name="monitor",
    help="""Watch a run: step, loss, speed, time left, checkpoints, GPUs and ranks.

RUN is the --output of a dsrun train or launch; without it, the newest run below ./runs is shown. On a terminal the view
fills the screen (q quits); elsewhere a line is printed for every change, until the run is over.

--log reads what the Hugging Face Trainer, DeepSpeed, Megatron-LM, torchtitan and others print.""",
)(command)
