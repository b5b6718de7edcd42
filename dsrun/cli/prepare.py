"""`dsrun prepare`: what the first minutes of `dsrun train` do with the data, without a GPU and ahead of the job."""

from __future__ import annotations

import os
import sys

import click

from dsrun.cli.train import TrainCommand

PREPARER = "dsrun.train.ahead"


@click.command(cls=TrainCommand, name="prepare")
@click.pass_obj
def command(args: list[str]) -> int:
    """Tokenise a run's data ahead of the job; takes the flags of `dsrun train`."""
    os.execv(sys.executable, [sys.executable, "-m", PREPARER, *args])
