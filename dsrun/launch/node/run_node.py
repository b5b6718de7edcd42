"""This machine's part of a run: what runs, with which environment, and how it ended."""

import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import click

from dsrun.errors import EXIT_INTERRUPTED, EXIT_RESUME, EXIT_TOOL_FAILED
from dsrun.hub.push import check_push
from dsrun.launch.context import LocalLauncher, RunOutcome, TrainingJob
from dsrun.launch.coordinator.messages import PORT, RendezvousError
from dsrun.launch.coordinator.rendezvous import rendezvous
from dsrun.launch.environment import has_libuv, launch_environment, network_variables, run_arguments, run_command
from dsrun.launch.node.sender import notifications, print_preview, printed_events
from dsrun.launch.node.work import NodeProgram
from dsrun.launch.signals import StartupSignals
from dsrun.launch.supervisor.events import RunEventWriter
from dsrun.launch.supervisor.supervise import supervise
from dsrun.recipe.preflight.elastic import NodeRange
from dsrun.recipe.recipe import phases
from dsrun.recipe.resolved import differences, from_json, recipe_in_force, to_json, with_secrets_of, without_secrets
from dsrun.runs.attempts import JobStarts, check_resume, earlier_signatures, saved_global_batch
from dsrun.runs.folder import RunFolder, refuse_unfit
from dsrun.runs.goodput import goodput, goodput_line
from dsrun.runs.lock import is_in_use
from dsrun.runs.records import iter_records
from dsrun.system import variables
from dsrun.system.host import hostname
from dsrun.system.net import address_towards, addresses, claim_port, free_port, own_name_addresses
from dsrun.system.shell import command_lines
from dsrun.system.terminal.display import counted, printable, terminal_width
from dsrun.system.terminal.secrets import without_tokens
from dsrun.system.terminal.status_line import status
from dsrun.system.terminal.stderr import ignore_closed_stream, print_detail, print_error, print_note

_HOLDER_POLL_S = 1.0


def run_node(work: NodeProgram, place: LocalLauncher, signals: StartupSignals, *, rendezvous_timeout_s: float) -> int:
    """Run this machine's part of the run; the exit code. Raises StoppedBeforeStart if a signal came before."""
    starts = JobStarts(Path(work.output), os.environ)
    if starts.finished and not work.dry_run:
        print_note(f"the run in {work.output} has finished: nothing is left to do for this job")
        return 0
    if place.node == 0:
        if starts.count:
            os.environ[variables.REQUEUE] = str(starts.count)
        if place.recreated:
            _wait_for_earlier_holder(Path(work.output), rendezvous_timeout_s)
        refuse_unfit(Path(work.output), force=work.force)
        if work.recipe is not None:
            # A requeued job keeps the recipe that it started with.
            recipe, notice = recipe_in_force(work.recipe, RunFolder(Path(work.output)), os.environ)
            work = replace(work, recipe=recipe)
            if notice:
                print_note(notice)
            if "train" in phases(recipe):
                check_resume(recipe.spec.resume, RunFolder(Path(work.output)), os.environ)
    if work.dry_run:
        return _dry_run(work, place)
    work.require()
    if place.node == 0 or place.own_terminal:
        print_detail(first_words(work, place))
    if place.node == 0 and work.recipe is not None:
        from dsrun.hub.reach import check_hub

        with status("asking the Hub"):
            check_push(work.recipe, Path(work.output), os.environ)
            check_hub(work.recipe, os.environ)
    with notifications(work, place, signals) as ended:
        with printed_events(work, place):
            outcome, folder = _run_supervised(work, place, signals, rendezvous_timeout_s=rendezvous_timeout_s)
        ended(outcome)
        return _report(outcome, folder, work, place)


def first_words(work: NodeProgram, place: LocalLauncher) -> str:
    """What is about to start, before anything heavy is loaded for it."""
    here = work.topology
    ranks = counted(place.nodes * here.workers, "rank")
    several = f"{place.nodes} machines, {counted(here.workers, 'rank')} here on " if place.nodes > 1 else ""
    return f"starting {ranks} on {several}{here.where} of {hostname()}, output in {work.output}"


def _run_supervised(
    work: NodeProgram, place: LocalLauncher, signals: StartupSignals, *, rendezvous_timeout_s: float
) -> tuple[RunOutcome, RunFolder]:
    """Meet the other nodes, and run until the end; how it ended, and the folder that node 0 has chosen."""
    if place.node == 0 and place.own_terminal:
        print_note(f"{place.how}; waiting for the others on port {(place.port or 0) + 1}")
        if not os.environ.get(variables.SECRET):
            print_note("whoever reaches that port can join the run; to prevent it, first run on every node:")
            print_detail(f"      export {variables.SECRET}={secrets.token_hex(16)}", secret=True)
    joining = rendezvous(
        replace(place, workers=work.topology.workers),
        signals,
        run_info=_run_info(work, place) if place.node == 0 else {},
        secret=os.environ.get(variables.SECRET),
        name=os.environ.get("SLURMD_NODENAME") or hostname(),
        timeout_s=rendezvous_timeout_s,
        least=work.elastic.least if work.elastic else None,
    )
    try:
        with joining as coordinator, ExitStack() as stack:
            run_info = coordinator.run_info
            folder = RunFolder(Path(run_info["output"]))
            os.environ |= {name: value for name, value in run_info.items() if name == variables.REQUEUE}
            if place.node != 0:
                work = _with_recipe_of_node_0(work, run_info, place)
            saved, port = run_info.get("saved_batch"), run_info.get(PORT)
            met_at = int(port) if port else None
            job, _ = _job(work, place, folder.path, coordinator.local_address, met_at=met_at, saved_batch=saved)
            if place.node == 0:
                stack.enter_context(RunFolder.create(folder.path, force=work.force).acquire_as_supervisor())
                JobStarts(folder.path, os.environ).record("began")
            outcome = supervise(job, coordinator, notifier(folder) if place.node == 0 else lambda _line: None)
            signals.is_over = True
    except RendezvousError as error:
        if place.recreated and JobStarts(Path(work.output), os.environ).count:
            # All have met before: a pod may wait for a machine for longer than the others wait for it.
            error.exit_code = EXIT_RESUME
        if place.node == 0:
            folder = RunFolder.create(Path(work.output), force=work.force)
            RunEventWriter(folder, print_note).never_began(
                str(error), cause="rendezvous_timeout", exit_code=error.exit_code
            )
        raise
    return outcome, folder


def _wait_for_earlier_holder(run: Path, seconds: float) -> None:
    """Wait, for `seconds` at most, while the run folder is in use.

    A file server keeps the locks of a lost machine for a minute or two, and a pod out of reach may still train."""
    deadline = time.monotonic() + seconds
    holder = is_in_use(run)
    if holder:
        print_note(f"output folder {run} is in use by {holder}: waiting until it is free")
    while holder and time.monotonic() < deadline:
        time.sleep(_HOLDER_POLL_S)
        holder = is_in_use(run)


def _run_info(work: NodeProgram, place: LocalLauncher) -> dict[str, str]:
    """What node 0 sends to all nodes, whose working directories may differ."""
    found = {"output": str(Path(work.output).absolute()) if place.nodes > 1 else work.output}
    found |= {name: value for name, value in os.environ.items() if name == variables.REQUEUE}
    if work.recipe is None:
        return found
    if place.nodes > 1:
        found["recipe"] = json.dumps(to_json(without_secrets(work.recipe)))
    folder = RunFolder(Path(work.output))
    saved = saved_global_batch(folder, work.recipe.spec.resume, earlier_signatures(os.environ))
    return {**found, "saved_batch": str(saved or "")}


def _with_recipe_of_node_0(work: NodeProgram, run_info: Mapping[str, str], place: LocalLauncher) -> NodeProgram:
    """On the other nodes: all ranks of a run train by one recipe."""
    if work.recipe is None or "recipe" not in run_info:
        return work
    recipe = from_json(json.loads(run_info["recipe"]), "the recipe of node 0")
    if place.own_terminal and (changed := differences(work.recipe, recipe)):
        print_note(f"the settings of node 0 differ and take precedence: {'; '.join(changed)}")
    elastic = NodeRange.parse(recipe.spec.elastic) if recipe.spec.elastic else None
    return replace(work, recipe=with_secrets_of(recipe, work.recipe), elastic=elastic)


def _job(
    work: NodeProgram,
    place: LocalLauncher,
    run: Path,
    met_from: str | None,
    *,
    met_at: int | None = None,
    saved_batch: str | None = None,
) -> tuple[TrainingJob, dict[str, str | None]]:
    """This machine's job, and what the environment of the workers has that this process's does not; None for what it
    has not."""
    changes = launch_environment(
        work.topology,
        os.environ,
        run=run,
        external=work.recipe is None,
        debug=work.debug,
        nodes=place.nodes,
        node=place.node,
        network=network_variables(met_from, addresses(), own_name_addresses()) if place.nodes > 1 else {},
        libuv=has_libuv(),
    )
    port = met_at or place.port
    if place.nodes == 1 and port is not None:
        port = claim_port(port, find=work.find_port)
    job = work.job(
        **({} if work.recipe is None else {"recipe": work.recipe}),
        run=run,
        env={name: value for name, value in {**os.environ, **changes}.items() if value is not None},
        nnodes=place.nodes,
        node_rank=place.node,
        host=place.host,
        port=port,
        saved_batch=int(saved_batch) if saved_batch else None,
        elastic=work.elastic,
        terminal_width=terminal_width(sys.stderr),
    )
    return job, changes


def _dry_run(work: NodeProgram, place: LocalLauncher) -> int:
    """Print what would be set here, and the command that would start the agent."""
    if place.how:
        print_note(place.how)
    if place.node == 0 and work.notify:
        print_preview(work)
    job, changes = _job(work, place, Path(work.output), address_towards(place.host) if place.nodes > 1 else None)
    if work.recipe is not None:  # A command that runs without a supervisor, which would send the recipe.
        job = replace(job, program=[*job.program, *without_dry_run(work.recipe.argv)])
    argv = run_command(run_arguments(job, attempt=0, port=job.port or free_port()))
    click.echo("\n".join(command_lines(argv, {**work.env, **changes})))
    return 0


def without_dry_run(argv: Sequence[str]) -> list[str]:
    """`argv` without --dry-run, however it is spelled."""
    return [arg for arg in argv if arg.replace("_", "-") != "--dry-run"]


def notifier(folder: RunFolder) -> Callable[[str], None]:
    """A function that prints a line of the supervisor and writes it into console.log."""

    def notify(line: str) -> None:
        print_note(line)
        _append_to_console(f"note: {line}", folder)

    return notify


def _append_to_console(line: str, folder: RunFolder) -> None:
    with suppress(OSError), folder.console.open("a", encoding="utf-8") as log:
        log.write(without_tokens(printable(line)) + "\n")


def _report(outcome: RunOutcome, folder: RunFolder, work: NodeProgram, place: LocalLauncher) -> int:
    """Print how the run ended: node 0 in full, the others if each has a terminal of its own. Returns the exit code."""
    if place.node == 0:
        # Where the time of the run went, over all its attempts and earlier starts.
        if work.recipe is not None and (spent := goodput(iter_records(folder.events))).productive:
            print_detail(line := f"  {goodput_line(spent)}")
            _append_to_console(line, folder)
        return report(outcome, folder, external=work.recipe is None)
    if outcome.message and (place.own_terminal or place.recreated):
        (print_note if outcome.exit_code in (EXIT_RESUME, EXIT_INTERRUPTED) else print_error)(outcome.message)
    return outcome.exit_code


def report(outcome: RunOutcome, folder: RunFolder, *, external: bool = False) -> int:
    """Print how the run ended; returns the exit code."""
    if outcome.exit_code == 0:
        with ignore_closed_stream(1):
            click.echo(folder.model if folder.model.is_dir() and not external else folder.path)
    elif outcome.exit_code in (EXIT_RESUME, EXIT_INTERRUPTED) and outcome.message:
        print_note(outcome.message)
    elif outcome.message:
        print_error(outcome.message)
        if outcome.advice:
            print_detail(f"       {outcome.advice}")
        if outcome.log and outcome.exit_code == EXIT_TOOL_FAILED:
            print_detail(f"       full log: {outcome.log}")
    return outcome.exit_code
