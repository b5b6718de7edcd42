"""`dsrun launch`: any training script on one machine or many, under a supervisor."""

from __future__ import annotations

import math
import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from dsrun.launch.signals import StartupSignals


@dataclass(frozen=True, kw_only=True)
class Options:
    """The command line, up to the program."""

    nodes: int | None
    node_rank: int | None
    master_addr: str | None
    master_port: int | None
    hostfile: Path | None
    include: str | None
    exclude: str | None
    nproc: int | None
    output: str | None
    max_restarts: int | None
    hang_timeout: float | None
    remedy: bool
    warm: bool
    rendezvous_timeout: float
    force: bool
    dry_run: bool
    debug: bool
    tied: bool

    def words(self) -> list[str]:
        """The options that every node's supervisor needs, as words."""
        valued = {
            "--output": self.output,
            "--max-restarts": self.max_restarts,
            "--hang-timeout": self.hang_timeout,
            "--rendezvous-timeout": self.rendezvous_timeout,
        }
        on = {
            "--no-remedy": not self.remedy,
            "--no-warm": not self.warm,
            "--force": self.force,
            "--debug": self.debug,
        }
        found = [word for flag, value in valued.items() if value is not None for word in (flag, f"{value}")]
        return found + [flag for flag, given in on.items() if given]


class _Seconds(click.FloatRange):
    """Click compares with the limits, and NaN is on neither side of them."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r} is not a number", param, ctx)
        return seconds


def _workers(_ctx: click.Context, _param: click.Parameter, value: str) -> int | None:
    """The number of workers; None for auto."""
    if value == "auto":
        return None
    if value.isascii() and value.isdigit() and int(value) > 0:
        return int(value)
    raise click.BadParameter(f"{value!r} is neither auto nor a number of workers")


@click.command(name="launch", context_settings={"allow_interspersed_args": False})
@click.option("--nodes", type=click.IntRange(min=1), help="machines in all, when each is started by hand")
@click.option("--node-rank", type=int, metavar="K", help="which of them this one is, from 0")
@click.option("--master-addr", metavar="HOST", help="name or address of node 0")
@click.option("--master-port", type=int, metavar="PORT", help="port on node 0; the next one is used as well")
@click.option(
    "--hostfile",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="start on all machines of this file over ssh; a line is `name slots=8`",
)
@click.option("--include", metavar="HOST:0,2@HOST", help="only these machines and GPUs of the hostfile")
@click.option("--exclude", metavar="HOST:0,2@HOST", help="all but these machines and GPUs of the hostfile")
@click.option(
    "--nproc",
    callback=_workers,
    default="auto",
    metavar="auto|N",
    help="workers per machine; auto: one per visible GPU",
)
@click.option("--output", metavar="RUN", help="run folder, on a file system that all machines share")
@click.option("--max-restarts", type=click.IntRange(min=0), help="restarts after transient failures [default: 3]")
@click.option("--hang-timeout", type=_Seconds(min=0), metavar="S", help="seconds without a step; 0: never")
@click.option("--no-remedy", "remedy", is_flag=True, default=True, flag_value=False, help="when memory runs out, stop")
@click.option("--no-warm", "warm", is_flag=True, default=True, flag_value=False, help="restart in a new interpreter")
@click.option(
    "--rendezvous-timeout",
    type=_Seconds(min=1),
    default=600,
    show_default=True,
    metavar="S",
    help="seconds that the machines wait for one another",
)
@click.option("--force", is_flag=True, help="write into a folder that is no run folder")
@click.option("--dry-run", is_flag=True, help="print what would be set and run, and start nothing")
@click.option("--debug", is_flag=True, help="show the output of torch.distributed.run, and the collectives' logs")
@click.option("--tied", is_flag=True, hidden=True)
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- PROGRAM [ARGS]...")
def command(program: tuple[str, ...], **given: Any) -> int:
    """Run a training script on one machine or many, and keep it running.

    PROGRAM is `my_train.py --flag`, `python my_train.py`, `-m my.module`, any executable, or `dsrun train --flag`. It
    runs once per GPU with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT set, and is started again
    from its last checkpoint when a rank or a machine is lost. Under SLURM and mpirun the machines are known.
    """
    from dsrun.cli.output import print_note
    from dsrun.launch.coordinator.messages import Stopped
    from dsrun.launch.signals import startup_signals
    from dsrun.launch.ssh import follow_control_stdin

    options = Options(**given)
    if options.tied:
        follow_control_stdin()
    _heed()
    try:
        with startup_signals() as early:
            return _launch(options, program, early)
    except Stopped as stopped:
        print_note(str(stopped))
        return stopped.exit_code


def _launch(options: Options, program: tuple[str, ...], early: StartupSignals) -> int:
    """Start what is to be started from here: this machine's part, or all machines'."""
    from dsrun.cli.launch_fleet import over_ssh, through_srun
    from dsrun.cli.launch_job import launch_here
    from dsrun.cli.launch_program import program_of, without_torchrun
    from dsrun.launch.context import LaunchRequest, SrunLauncher, SshLauncher, detect

    _check(options)
    options, words, name = without_torchrun(options, program)
    place = detect(
        LaunchRequest(
            nodes=options.nodes,
            node_rank=options.node_rank,
            master_addr=options.master_addr,
            master_port=options.master_port,
            hostfile=options.hostfile is not None,
        ),
        os.environ,
    )
    parsed = program_of(words)
    if isinstance(place, SshLauncher):
        return over_ssh(options, program, early)
    if isinstance(place, SrunLauncher):
        return through_srun(options, place.nodes, program)
    place = replace(place, run=f"{place.run} {name}")
    if options.tied:
        place = replace(place, how=f"node {place.node} of {place.nodes}, over ssh", own_terminal=False)
    return launch_here(options, place, parsed, early)


def _heed() -> None:
    """Batch scripts ignore signals so that what they start is not ended by them; here they mean: save and leave."""
    for signum in (signal.SIGTERM, signal.SIGUSR1):
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, signal.SIG_DFL)


def _check(options: Options) -> None:
    from dsrun.errors import UsageError

    for flag, value in (("--include", options.include), ("--exclude", options.exclude)):
        if value is not None and options.hostfile is None:
            raise UsageError(f"{flag} chooses from a hostfile, and there is none", fix="add --hostfile FILE")
    if options.include and options.exclude:
        raise UsageError("--include and --exclude exclude one another", fix="give one of them")
