"""This machine's part of a run: what runs, with which environment, and how it ended."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dsrun.cli.launch_options import LaunchOptions
from dsrun.cli.output import ignore_closed_stream, print_detail, print_error, print_note
from dsrun.cli.run_job import topology_of, training_job, with_flags
from dsrun.errors import EXIT_RESUME, EXIT_TOOL_FAILED
from dsrun.system import variables

if TYPE_CHECKING:
    from dsrun.launch.context import LocalLauncher
    from dsrun.launch.job import Job, Outcome, Topology
    from dsrun.launch.signals import StartupSignals
    from dsrun.recipe.recipe import Recipe
    from dsrun.runs.folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class Work:
    """What runs on this machine.

    `output` is its run folder; `require` raises MissingError for what it needs and this machine lacks; `job` makes the
    Job from the fields that depend on the place. `recipe` is that of dsrun's own training, None for an external
    program; `job` takes it as a field too. `find_port` is passed to `claim_port` for a named port on one machine.
    """

    topology: Topology
    output: str
    external: bool
    debug: bool
    dry_run: bool
    force: bool
    require: Callable[[], None]
    job: Callable[..., Job]
    recipe: Recipe | None = None
    find_port: bool | None = None


def training_work(recipe: Recipe, options: LaunchOptions) -> Work:
    """dsrun's own training. `options` take precedence over the recipe; their `output` is the run folder, if named."""
    from dsrun.runs.folder import default_name
    from dsrun.system.host import require_training_packages

    spec = recipe.spec
    topology = topology_of(recipe, nproc=options.nproc)

    def job(recipe: Recipe, **fields: Any) -> Job:
        made = training_job(recipe, topology=topology, named=bool(options.output), **fields)
        restarts = made.limits.max_restarts if options.max_restarts is None else options.max_restarts
        return replace(
            made,
            limits=replace(made.limits, max_restarts=restarts, remedy=made.limits.remedy and options.remedy),
            hang_timeout=made.hang_timeout if options.hang_timeout is None else options.hang_timeout,
            warm=made.warm and options.warm,
            echo=made.echo or options.debug,
        )

    return Work(
        topology=topology,
        output=options.output or default_name(spec.model or spec.model_type or "model", datetime.now()),
        external=False,
        debug=options.debug or spec.debug,
        dry_run=options.dry_run or spec.dry_run,
        force=options.force or spec.force,
        require=require_training_packages,
        job=job,
        recipe=recipe,
    )


def run_node(work: Work, place: LocalLauncher, early: StartupSignals, *, rendezvous_timeout_s: float) -> int:
    """Run this machine's part of the run to its end; the exit code. Raises Stopped if a signal came before."""
    from dsrun.launch.coordinator.messages import RendezvousError
    from dsrun.launch.coordinator.rendezvous import rendezvous
    from dsrun.launch.supervisor.events import RunEventWriter
    from dsrun.launch.supervisor.run import supervise
    from dsrun.runs.folder import RunFolder, refuse_unfit
    from dsrun.system.host import hostname

    if place.node == 0:
        refuse_unfit(Path(work.output), force=work.force)
        work = _with_recipe_in_force(work)
    if work.dry_run:
        return _dry_run(work, place)
    work.require()
    if place.node == 0 and place.own_terminal:
        print_note(f"{place.how}; waiting for the others on port {(place.port or 0) + 1}")
    joining = rendezvous(
        place,
        early,
        run_info=_run_info(work, place) if place.node == 0 else {},
        secret=os.environ.get(variables.SECRET),
        name=os.environ.get("SLURMD_NODENAME") or hostname(),
        timeout_s=rendezvous_timeout_s,
    )
    try:
        with joining as coordinator:
            run_info = coordinator.run_info
            folder = RunFolder(Path(run_info["output"]))
            if place.node != 0:
                work = _with_recipe_of_node_0(work, run_info, place)
            job = _job(work, place, folder.path, _changes(work, place, folder.path, coordinator.local_address))
            if run_info.get("saved_batch"):
                job = replace(job, saved_batch=int(run_info["saved_batch"]))
            if place.node == 0:
                RunFolder.create(folder.path, force=work.force)
            outcome = supervise(job, coordinator, notifier(folder) if place.node == 0 else _silent)
            early.is_over = True
    except RendezvousError as error:
        if place.node == 0:
            folder = RunFolder.create(Path(work.output), force=work.force)
            RunEventWriter(folder, print_note).never_began(
                str(error), cause="rendezvous_timeout", exit_code=error.exit_code
            )
        raise
    return _report(outcome, folder, work, place)


def _with_recipe_in_force(work: Work) -> Work:
    """On node 0: a requeued job keeps the recipe that it started with."""
    if work.recipe is None:
        return work
    from dsrun.recipe.resolved import recipe_in_force
    from dsrun.runs.folder import RunFolder

    recipe, notice = recipe_in_force(work.recipe, RunFolder(Path(work.output)), os.environ)
    if notice:
        print_note(notice)
    return replace(work, recipe=recipe)


def _run_info(work: Work, place: LocalLauncher) -> dict[str, str]:
    """What node 0 sends to all nodes, whose working directories may differ."""
    found = {"output": str(Path(work.output).absolute()) if place.nodes > 1 else work.output}
    if work.recipe is None:
        return found
    from dsrun.recipe.resolved import to_json, without_secrets
    from dsrun.runs.attempts import earlier_signatures, saved_global_batch
    from dsrun.runs.folder import RunFolder

    if place.nodes > 1:
        found["recipe"] = json.dumps(to_json(without_secrets(work.recipe)))
    folder = RunFolder(Path(work.output))
    saved = saved_global_batch(folder, work.recipe.spec.resume, earlier_signatures(os.environ))
    return {**found, "saved_batch": str(saved or "")}


def _with_recipe_of_node_0(work: Work, run_info: Mapping[str, str], place: LocalLauncher) -> Work:
    """On the other nodes: all ranks of a run train by one recipe."""
    if work.recipe is None or "recipe" not in run_info:
        return work
    from dsrun.recipe.resolved import differences, from_json, with_secrets_of

    recipe = from_json(json.loads(run_info["recipe"]), "the recipe of node 0")
    if place.own_terminal and (changed := differences(work.recipe, recipe)):
        print_note(f"the settings of node 0 differ and take precedence: {'; '.join(changed)}")
    return replace(work, recipe=with_secrets_of(recipe, work.recipe))


def _changes(work: Work, place: LocalLauncher, run: Path, met_from: str | None) -> dict[str, str | None]:
    """What the environment of the workers has that this process's does not; None for what it has not."""
    from dsrun.launch.environment import has_libuv, launch_environment, network_variables
    from dsrun.system.net import addresses, own_name_addresses

    network = network_variables(met_from, addresses(), own_name_addresses()) if place.nodes > 1 else {}
    return launch_environment(
        work.topology,
        os.environ,
        run=run,
        external=work.external,
        debug=work.debug,
        nodes=place.nodes,
        node=place.node,
        network=network,
        libuv=has_libuv(),
    )


def _job(work: Work, place: LocalLauncher, run: Path, changes: Mapping[str, str | None]) -> Job:
    from dsrun.system.net import claim_port

    port = place.port
    if place.nodes == 1 and port is not None:
        port = claim_port(port, find=work.find_port)
    return work.job(
        **({} if work.recipe is None else {"recipe": work.recipe}),
        run=run,
        env={name: value for name, value in {**os.environ, **changes}.items() if value is not None},
        nnodes=place.nodes,
        node_rank=place.node,
        host=place.host,
        port=port,
    )


def _dry_run(work: Work, place: LocalLauncher) -> int:
    """Print what would be set here, and the command that would start the agent."""
    from dsrun.launch.environment import run_arguments, run_command
    from dsrun.system.net import address_towards, free_port

    if place.how:
        print_note(place.how)
    run = Path(work.output)
    changes = _changes(work, place, run, address_towards(place.host) if place.nodes > 1 else None)
    job = _job(work, place, run, changes)
    if work.recipe is not None:
        job = with_flags(job, work.recipe)
    print_command(run_command(run_arguments(job, attempt=0, port=job.port or free_port())), changes)
    return 0


def print_command(argv: Sequence[str], changes: Mapping[str, str | None]) -> None:
    """Print the changes of the environment and a command, ready for a shell."""
    for name, value in sorted(changes.items()):
        click.echo(f"unset {name}" if value is None else f"export {name}={shlex.quote(value)}")
    click.echo(shlex.join(argv))


def notifier(folder: RunFolder) -> Callable[[str], None]:
    """A function that prints a line of the supervisor and writes it into console.log."""

    def notify(line: str) -> None:
        print_note(line)
        _append_to_console(f"note: {line}", folder)

    return notify


def _silent(line: str) -> None:
    """Only node 0 reports on the run."""


def _append_to_console(line: str, folder: RunFolder) -> None:
    with suppress(OSError), folder.console.open("a", encoding="utf-8") as log:
        log.write(line + "\n")


def _report(outcome: Outcome, folder: RunFolder, work: Work, place: LocalLauncher) -> int:
    """Print how the run ended: node 0 in full, the others if each has a terminal of its own. Returns the exit code."""
    if place.node == 0:
        if not work.external:
            _print_goodput(folder)
        return report(outcome, folder, external=work.external)
    if outcome.message and place.own_terminal:
        (print_note if outcome.exit_code == EXIT_RESUME else print_error)(outcome.message)
    return outcome.exit_code


def _print_goodput(folder: RunFolder) -> None:
    """Print where the time of the run went, over all its attempts and earlier starts."""
    from dsrun.runs.goodput import goodput, goodput_line
    from dsrun.runs.records import iter_records

    ledger = goodput(iter_records(folder.events))
    if ledger.productive:
        line = f"  {goodput_line(ledger)}"
        print_detail(line)
        _append_to_console(line, folder)


def report(outcome: Outcome, folder: RunFolder, *, external: bool = False) -> int:
    """Print how the run ended; returns the exit code."""
    if outcome.exit_code == 0:
        with ignore_closed_stream(1):
            click.echo(folder.model if folder.model.is_dir() and not external else folder.path)
    elif outcome.exit_code == EXIT_RESUME and outcome.message:
        print_note(outcome.message)
    elif outcome.message:
        print_error(outcome.message)
        if outcome.advice:
            print_detail(f"       {outcome.advice}")
        if outcome.log and outcome.exit_code == EXIT_TOOL_FAILED:
            print_detail(f"       full log: {outcome.log}")
    return outcome.exit_code
