"""`dsrun launch`: any training script on one machine or several, under a supervisor."""

import os
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from dsrun.errors import UsageError
from dsrun.system.env import is_count, shortened
from dsrun.system.terminal.stderr import print_note

if TYPE_CHECKING:
    from dsrun.launch.signals import StartupSignals


def workers(_ctx: click.Context, _param: click.Parameter, value: str) -> int | None:
    """The number of workers; None for auto."""
    if value == "auto":
        return None
    if is_count(value) and int(value) > 0:
        return int(value)
    raise click.BadParameter(f"{shortened(value)!r} is neither auto nor a number of workers")


def refuse_env(_ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    if value is not None:
        fix = "the program has your environment: NAME=VALUE dsrun launch …"
        raise UsageError("--env is an option of render-slurm and render-k8s", fix=fix)


def run(program: tuple[str, ...], **given: Any) -> int:
    """Start this machine's part, or all machines'; the callback of `dsrun launch`."""
    from dsrun.launch.coordinator.messages import StoppedBeforeStart
    from dsrun.launch.signals import startup_signals
    from dsrun.launch.ssh import follow_control_stdin

    if given["tied"]:
        follow_control_stdin()
    _set_signals(handled=given["signals"])
    try:
        with startup_signals() as signals:
            return _launch(given, program, signals)
    except StoppedBeforeStart as stopped:
        print_note(str(stopped))
        return stopped.exit_code


def _launch(given: dict[str, Any], program: tuple[str, ...], signals: "StartupSignals") -> int:
    """Run this machine's part, or start all machines' parts from here."""
    # Imported when signals are handled, as this takes a while.
    from dsrun.cli.launch.remote import over_ssh, through_srun
    from dsrun.launch.context import SrunLauncher, SshLauncher
    from dsrun.launch.detection.detect import detect
    from dsrun.launch.launcher_line import launcher_line
    from dsrun.launch.node.run_node import run_node
    from dsrun.launch.node.work import LaunchOptions, launch_command, merge_launcher, parse_program, work_of
    from dsrun.launch.refusals import refusal, refuse
    from dsrun.recipe.preflight.elastic import NodeRange
    from dsrun.system.host import hostname
    from dsrun.system.net import is_this_machine

    options = LaunchOptions(**given)
    line = launcher_line(program, os.environ)
    if line is not None:
        options, program = merge_launcher(options, line), line.command
        os.environ |= line.env
    if options.elastic and options.node_rank is not None and options.nodes is None:
        options = replace(options, nodes=NodeRange.parse(options.elastic).most)
    refuse("machines", options=options)
    # What is here was looked at where this was started from; the flags say the rest.
    place = detect(options, {} if options.tied else os.environ)
    if line is not None and getattr(place, "node", 0) == 0:
        print_note(line.same_as(launch_command(line, options)))
    parsed, env = parse_program(program), line.env if line else {}
    if parsed.trains and not options.signals:
        raise refusal("program.no_signals")
    if isinstance(place, SshLauncher):
        return over_ssh(options, place, program, signals, more=env)
    if isinstance(place, SrunLauncher):
        return through_srun(options, place.nodes, program, more=env)
    if place.listed and place.node == 0 and not is_this_machine(place.host):
        raise refusal("place.other_first", place=place, here=hostname())
    place = replace(place, run=f"{place.run} {(line and line.rdzv_id) or ''}")
    if options.tied:
        place = replace(place, how=f"node {place.node} of {place.nodes}, over ssh", own_terminal=False)
    work = replace(work_of(options, parsed, nodes=place.nodes), env=env)
    if place.tool and place.node == 0:
        # mpirun and others bind what they start to one core by default, and so all that this starts.
        here, there = work.topology, os.cpu_count() or 1
        if here.cores < min(there, max(2, here.workers)):
            some = f"the {here.workers} workers here may use {here.cores} of {there} cores"
            print_note(f"{some}: start it by {place.tool}")
    return run_node(work, place, signals, rendezvous_timeout_s=options.rendezvous_timeout)


def _set_signals(*, handled: bool) -> None:
    """Batch scripts ignore signals so that these do not end what they start; here they mean: save and exit.

    Unless they are `handled`, this process and what it starts ignore them."""
    for signum in (signal.SIGTERM, signal.SIGUSR1):
        if not handled:
            signal.signal(signum, signal.SIG_IGN)
        elif signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, signal.SIG_DFL)
