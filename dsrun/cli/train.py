"""`dsrun train`: check what can be checked, start the workers, pass their exit code on."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsrun.cli.output import print_note
from dsrun.cli.run_job import (
    WORKER,
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

if TYPE_CHECKING:
    from dsrun.launch.signals import StartupSignals
    from dsrun.recipe.recipe import Recipe


class TrainCommand(click.Command):
    """Leaves all flags to the recipe's own parser, which knows those of transformers too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if any(arg in ("-h", "--help") for arg in args):
            from dsrun.recipe.reference import help_text

            click.echo(f"Usage: {ctx.command_path} [FLAGS]\n\n  {self.get_short_help_str(200)}\n")
            click.echo(help_text(shutil.get_terminal_size().columns))
            ctx.exit()
        ctx.obj = list(args)
        return []


@click.command(cls=TrainCommand, name="train")
@click.pass_obj
def command(args: list[str]) -> int:
    """Train a seq2seq or causal LM under DeepSpeed ZeRO."""
    from dsrun.launch.coordinator.messages import Stopped
    from dsrun.launch.signals import startup_signals
    from dsrun.system.env import worker_from_env
    from dsrun.system.host import require_training_packages

    if worker_from_env(os.environ) is not None:
        require_training_packages()
        os.execv(sys.executable, [sys.executable, "-m", WORKER, *args])
    try:
        with startup_signals() as early:
            recipe = checked_recipe(args)
            if recipe.spec.explain:
                show_values(recipe)
                return 0
            return _launch(recipe, early)
    except Stopped as stopped:
        print_note(str(stopped))
        return stopped.exit_code


def _launch(recipe: Recipe, early: StartupSignals) -> int:
    from dsrun.launch.coordinator.messages import SingleNodeCoordinator
    from dsrun.launch.environment import has_libuv, launch_environment, run_arguments, run_command
    from dsrun.launch.supervisor.run import supervise
    from dsrun.recipe.resolved import recipe_in_force
    from dsrun.runs.attempts import earlier_signatures, saved_global_batch
    from dsrun.runs.folder import RunFolder, refuse_unfit
    from dsrun.system.host import require_training_packages
    from dsrun.system.net import free_port

    topology = topology_of(recipe)
    folder = RunFolder(Path(recipe.spec.output or default_output(recipe)))
    refuse_unfit(folder.path, force=recipe.spec.force)
    recipe, notice = recipe_in_force(recipe, folder, os.environ)
    if notice:
        print_note(notice)
    changes = launch_environment(
        topology, os.environ, run=folder.path, external=False, debug=recipe.spec.debug, libuv=has_libuv()
    )
    env = {name: value for name, value in {**os.environ, **changes}.items() if value is not None}
    named = bool(recipe.spec.output)
    job = training_job(
        recipe,
        saved_batch=saved_global_batch(folder, recipe.spec.resume, earlier_signatures(os.environ)),
        topology=topology,
        run=folder.path,
        env=env,
        port=_port(recipe),
        named=named,
    )
    if recipe.spec.dry_run:
        by_hand = run_arguments(with_flags(job, recipe), attempt=0, port=job.port or free_port())
        show(run_command(by_hand), changes)
        return 0
    require_training_packages()
    RunFolder.create(folder.path, force=recipe.spec.force)
    coordinator = SingleNodeCoordinator()
    early.forward_to(coordinator)
    outcome = supervise(job, coordinator, teller(folder))
    early.is_over = True
    account(folder)
    return report(outcome, folder)


def _port(recipe: Recipe) -> int | None:
    """The port that the user wants; None for a free one, found for every attempt anew."""
    from dsrun.system.net import claim_port

    if recipe.spec.master_port is None:
        return None
    return claim_port(recipe.spec.master_port, find=recipe.spec.find_port)


def show_values(recipe: Recipe) -> None:
    """--explain: every value with where it comes from."""
    from dsrun.recipe.resolve import explain

    rows = [(name, repr(value), source) for name, value, source in explain(recipe)]
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    for name, value, source in rows:
        click.echo(f"{name.ljust(widths[0])}  {value.ljust(widths[1])}  {source}")
