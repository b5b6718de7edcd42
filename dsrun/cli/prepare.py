"""`dsrun prepare`: what the first minutes of `dsrun train` do with the data, without a GPU and ahead of the job."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from dsrun.cli.run_job import show
from dsrun.cli.train import TrainCommand, show_values
from dsrun.system.host import require_training_packages

PREPARER = "dsrun.train.prepare"


@click.command(cls=TrainCommand, name="prepare")
@click.pass_obj
def command(args: list[str]) -> int:
    """Tokenise a run's data ahead of the job; takes the flags of `dsrun train`."""
    from dsrun.recipe.resolve import resolve

    recipe = resolve(args, Path.cwd())
    argv = [sys.executable, "-m", PREPARER, *args]
    if recipe.spec.explain:
        show_values(recipe)
    elif recipe.spec.dry_run:
        show([word for word in argv if word.replace("_", "-") != "--dry-run"], {})
    else:
        require_training_packages()
        os.execv(sys.executable, argv)
    return 0
