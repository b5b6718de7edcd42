"""`dsrun prepare`: what the first minutes of `dsrun train` do with the data, without a GPU and ahead of the job."""

from __future__ import annotations

import os
import sys

import click

from dsrun.cli.train import TrainCommand
from dsrun.launch.packages import require_training_packages

PREPARER = "dsrun.train.ahead"


@click.command(cls=TrainCommand, name="prepare")
@click.pass_obj
def command(args: list[str]) -> int:
    """Tokenise a run's data ahead of the job; takes the flags of `dsrun train`."""
    require_training_packages()
    os.execv(sys.executable, [sys.executable, "-m", PREPARER, *args])
