"""`dsrun train`: check what can be checked, start the workers, pass their exit code on."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsrun.cli.words import complain, remark

if TYPE_CHECKING:
    from dsrun.launch.topology import Topology
    from dsrun.recipe.resolve import Recipe

WORKER = "dsrun.train"
OUTPUT_VARIABLE = "DSRUN_OUTPUT"


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
    from dsrun.launch.packages import require_training_packages
    from dsrun.recipe.resolve import resolve
    from dsrun.system.env import worker_from_env

    if worker_from_env(os.environ) is not None:
        require_training_packages()
        os.execv(sys.executable, [sys.executable, "-m", WORKER, *args])
    recipe = resolve(args, Path.cwd())
    if recipe.spec.explain:
        _explain(recipe)
        return 0
    return _launch(recipe, args)


def _launch(recipe: Recipe, args: list[str]) -> int:
    from dsrun.launch.agent import run_agent
    from dsrun.launch.command import agent_argv, worker_environment
    from dsrun.launch.packages import require_training_packages
    from dsrun.recipe.files import check_files
    from dsrun.recipe.trackers import check_packages
    from dsrun.runs.folder import RunFolder, refuse_unfit

    for notice in recipe.notices:
        remark(notice)
    check_files(recipe.spec)
    check_packages(recipe)
    topology = _topology(recipe)
    folder = RunFolder(Path(recipe.spec.output or _default_output(recipe)))
    refuse_unfit(folder.path, force=recipe.spec.force)
    argv = agent_argv(topology, port=_port(recipe), module=WORKER, args=args)
    changes = worker_environment(topology, os.environ, debug=recipe.spec.debug) | {
        OUTPUT_VARIABLE: str(folder.path)
    }
    if recipe.spec.dry_run:
        _show([word for word in argv if word.replace("_", "-") != "--dry-run"], changes)
        return 0
    require_training_packages()
    env = {name: value for name, value in {**os.environ, **changes}.items() if value is not None}
    RunFolder.create(folder.path, force=recipe.spec.force)
    width = shutil.get_terminal_size().columns if sys.stderr.isatty() else None
    log = folder.logs / f"{datetime.now():%Y%m%d-%H%M%S}-launcher.log"
    outcome = run_agent(argv, env, log, terminal_width=width, echo=recipe.spec.debug)
    if outcome.message:
        complain(outcome.message)
        if outcome.log and outcome.exit_code == 1:
            click.echo(f"       the whole story is in {outcome.log}", err=True)
    elif outcome.exit_code == 0:
        click.echo(folder.model if folder.model.is_dir() else folder.path)
    return outcome.exit_code


def _topology(recipe: Recipe) -> Topology:
    """The workers of this machine; the batch must divide among them."""
    from dsrun.launch.topology import decide
    from dsrun.recipe.batch import batch_plan
    from dsrun.system.gpus import gpu_count
    from dsrun.system.host import cores

    spec = recipe.spec
    topology = decide(
        nproc=spec.nproc, visible_gpus=gpu_count(), cores=cores(), use_cpu=bool(recipe.hf.get("use_cpu"))
    )
    batch_plan(
        global_batch_size=spec.global_batch_size,
        micro_batch_size=spec.micro_batch_size or recipe.hf.get("per_device_train_batch_size"),
        accumulation=recipe.hf.get("gradient_accumulation_steps"),
        world_size=topology.workers,
        default_micro=8,
    )
    return topology


def _port(recipe: Recipe) -> int:
    from dsrun.system.net import claim_port, free_port

    if recipe.spec.master_port is None:
        return free_port()
    return claim_port(recipe.spec.master_port, find=recipe.spec.find_port)


def _default_output(recipe: Recipe) -> str:
    from dsrun.runs.folder import default_name

    return default_name(recipe.spec.model or recipe.spec.model_type or "model", datetime.now())


def _explain(recipe: Recipe) -> None:
    from dsrun.recipe.resolve import explain

    rows = [(name, repr(value), source) for name, value, source in explain(recipe)]
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    for name, value, source in rows:
        click.echo(f"{name.ljust(widths[0])}  {value.ljust(widths[1])}  {source}")


def _show(argv: list[str], changes: dict[str, str | None]) -> None:
    for name, value in sorted(changes.items()):
        click.echo(f"unset {name}" if value is None else f"export {name}={shlex.quote(value)}")
    click.echo(shlex.join(argv))
