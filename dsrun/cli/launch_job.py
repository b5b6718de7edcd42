"""This machine's part of `dsrun launch`: what runs, with which environment, and how it ended."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsrun.cli.output import print_error, print_note
from dsrun.cli.run_job import (
    account,
    checked_recipe,
    default_output,
    report,
    show,
    teller,
    topology_of,
    training_job,
    with_flags,
)
from dsrun.errors import EXIT_RESUME, MissingError, UsageError
from dsrun.system import variables

if TYPE_CHECKING:
    from dsrun.cli.launch import Options
    from dsrun.launch.context import LocalLauncher
    from dsrun.launch.job import Job, Outcome, Topology
    from dsrun.launch.signals import StartupSignals
    from dsrun.recipe.recipe import Recipe
    from dsrun.runs.folder import RunFolder
    from dsrun.slurm.render.program import Program


@dataclass(frozen=True, kw_only=True)
class Work:
    """What runs on this machine. `output` is its run folder, as named or by default; `recipe` that of dsrun's own
    training, None for an external program; `job` makes the Job of the recipe, if any, and the fields that depend on the
    place."""

    topology: Topology
    output: str
    external: bool
    debug: bool
    dry_run: bool
    force: bool
    job: Callable[..., Job]
    recipe: Recipe | None = None


def launch_here(options: Options, place: LocalLauncher, program: Program, early: StartupSignals) -> int:
    """Run this machine's part of the run to its end; the exit code. Raises Stopped where a signal came before."""
    from dsrun.launch.coordinator.messages import RendezvousError
    from dsrun.launch.coordinator.rendezvous import rendezvous
    from dsrun.launch.supervisor.events import RunEventWriter
    from dsrun.launch.supervisor.run import supervise
    from dsrun.runs.folder import RunFolder, refuse_unfit
    from dsrun.system.host import hostname

    work = _own(options, program) if program.trains else _foreign(options, program)
    if place.node == 0:
        refuse_unfit(Path(work.output), force=work.force)
        work = _with_recipe_in_force(work)
    if work.dry_run:
        return _show(work, place)
    _require(work, program)
    if place.node == 0 and place.own_terminal:
        print_note(f"{place.how}; waiting for the others on port {(place.port or 0) + 1}")
    joining = rendezvous(
        place,
        early,
        run_info=_run_info(work, place) if place.node == 0 else {},
        secret=os.environ.get(variables.SECRET),
        name=os.environ.get("SLURMD_NODENAME") or hostname(),
        timeout_s=options.rendezvous_timeout,
    )
    try:
        with joining as (coordinator, run_info, met_from):
            folder = RunFolder(Path(run_info["output"]))
            if place.node == 0:
                RunFolder.create(folder.path, force=work.force)
            else:
                work = _with_recipe_of_node_0(work, run_info, place)
            job = _job(work, place, folder.path, _changes(work, place, folder.path, met_from))
            if run_info.get("saved_batch"):
                job = replace(job, saved_batch=int(run_info["saved_batch"]))
            outcome = supervise(job, coordinator, teller(folder) if place.node == 0 else _silence)
            early.is_over = True
    except RendezvousError as error:
        if place.node == 0:
            folder = RunFolder.create(Path(work.output), force=work.force)
            RunEventWriter(folder, print_note).never_began(
                str(error), cause="rendezvous_timeout", exit_code=error.exit_code
            )
        raise
    return _report(outcome, folder, work, place)


def _foreign(options: Options, program: Program) -> Work:
    """Any program but dsrun's own training."""
    from dsrun.launch.job import Job, decide
    from dsrun.launch.supervisor.policy import Limits
    from dsrun.runs.folder import default_name
    from dsrun.system.gpus import gpu_count
    from dsrun.system.host import cores

    named = options.output or os.environ.get(variables.OUTPUT)
    topology = decide(nproc=options.nproc, visible_gpus=gpu_count(), cores=cores(), use_cpu=False)
    restarts = {} if options.max_restarts is None else {"max_restarts": options.max_restarts}
    return Work(
        topology=topology,
        output=named or default_name(program.name, datetime.now()),
        external=True,
        debug=options.debug,
        dry_run=options.dry_run,
        # What else lies in its folder is the program's own.
        force=True,
        job=partial(
            Job,
            topology=topology,
            program=_words(program),
            external=True,
            limits=Limits(**restarts, remedy=False),
            hang_timeout=options.hang_timeout,
            warm=False,
            # Its words are for the user, as they are for torchrun's.
            echo=True,
            terminal_width=shutil.get_terminal_size().columns if sys.stderr.isatty() else None,
        ),
    )


def _words(program: Program) -> tuple[str, ...]:
    """A `python` that is not this one runs its scripts itself: torch.distributed.run starts its own otherwise."""
    if "--no-python" in program.mode or program.interpreter is None:
        return (*program.mode, program.entry, *program.words)
    found = shutil.which(program.interpreter) or program.interpreter
    if Path(found).parent == Path(sys.executable).parent:
        return (*program.mode, program.entry, *program.words)
    module = ("-m",) if "--module" in program.mode else ()
    return ("--no-python", found, "-u", *module, program.entry, *program.words)


def _own(options: Options, program: Program) -> Work:
    """dsrun's own training; what `dsrun launch` was told comes before the recipe."""

    recipe = checked_recipe(list(program.words))
    spec = recipe.spec
    if options.output and spec.output and options.output != spec.output:
        raise UsageError(
            f"--output {options.output} for dsrun launch, but {spec.output} for dsrun train",
            fix="give it once",
        )
    topology = topology_of(recipe, nproc=options.nproc)
    output = options.output or spec.output or os.environ.get(variables.OUTPUT)

    def job(recipe: Recipe, **fields: Any) -> Job:
        made = training_job(recipe, topology=topology, named=bool(output), **fields)
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
        output=output or default_output(recipe),
        external=False,
        debug=options.debug or spec.debug,
        dry_run=options.dry_run or spec.dry_run,
        force=options.force or spec.force,
        job=job,
        recipe=recipe,
    )


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
    """What node 0 tells all nodes, which may be in other folders."""
    found = {"output": str(Path(work.output).absolute()) if place.nodes > 1 else work.output}
    if work.recipe is not None and place.nodes > 1:
        from dsrun.recipe.resolved import to_json, without_secrets

        found["recipe"] = json.dumps(to_json(without_secrets(work.recipe)))
    if work.recipe is not None:
        from dsrun.runs.attempts import earlier_signatures, saved_global_batch
        from dsrun.runs.folder import RunFolder

        folder = RunFolder(Path(work.output))
        saved = saved_global_batch(folder, work.recipe.spec.resume, earlier_signatures(os.environ))
        found["saved_batch"] = str(saved or "")
    return found


def _with_recipe_of_node_0(work: Work, run_info: Mapping[str, str], place: LocalLauncher) -> Work:
    """On the other nodes: all ranks of a run train by one recipe."""
    if work.recipe is None or "recipe" not in run_info:
        return work
    from dsrun.recipe.resolved import differences, from_json, with_secrets_of

    recipe = from_json(json.loads(run_info["recipe"]), "the recipe of node 0")
    if place.own_terminal and (changed := differences(work.recipe, recipe)):
        print_note(f"node 0 has other settings, which count: {'; '.join(changed)}")
    return replace(work, recipe=with_secrets_of(recipe, work.recipe))


def _require(work: Work, program: Program) -> None:
    """Raise MissingError here, where the rank would only end with a traceback, and be started again."""
    from importlib.util import find_spec

    from dsrun.system.host import require_training_packages

    if not work.external:
        require_training_packages()
    elif find_spec("torch") is None:
        raise MissingError(f"there is no torch in {sys.executable}, which starts the workers", fix="pip install torch")
    elif "--no-python" in program.mode and shutil.which(program.entry) is None:
        raise MissingError(f"there is no program {program.entry}", fix="-- PROGRAM ARGS, with its path")


def _changes(work: Work, place: LocalLauncher, run: Path, met_from: str | None) -> dict[str, str | None]:
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
        port = claim_port(port, find=None)
    return work.job(
        **({} if work.recipe is None else {"recipe": work.recipe}),
        run=run,
        env={name: value for name, value in {**os.environ, **changes}.items() if value is not None},
        nnodes=place.nodes,
        node_rank=place.node,
        host=place.host,
        port=port,
    )


def _show(work: Work, place: LocalLauncher) -> int:
    """--dry-run: what would be set here, and the command that would start the agent."""
    from dsrun.launch.environment import run_arguments, run_command
    from dsrun.system.net import address_towards, free_port

    print_note(place.how)
    run = Path(work.output)
    changes = _changes(work, place, run, address_towards(place.host) if place.nodes > 1 else None)
    job = _job(work, place, run, changes)
    if work.recipe is not None:
        job = with_flags(job, work.recipe)
    show(run_command(run_arguments(job, attempt=0, port=job.port or free_port())), changes)
    return 0


def _silence(line: str) -> None:
    """Only the first node speaks for the run."""


def _report(outcome: Outcome, folder: RunFolder, work: Work, place: LocalLauncher) -> int:
    """Say how it ended: the first node in full, the others where each has a terminal of its own."""
    if place.node == 0:
        if not work.external:
            account(folder)
        return report(outcome, folder, external=work.external)
    if outcome.message and place.own_terminal:
        (print_note if outcome.exit_code == EXIT_RESUME else print_error)(outcome.message)
    return outcome.exit_code
