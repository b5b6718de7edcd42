"""`dsrun jobs`: job IDs and hours that are not valid."""

from __future__ import annotations

import click
import pytest

from dsrun.cli.options import declared_in
from dsrun.errors import UsageError

command = declared_in("slurm/jobs.toml")


@pytest.mark.parametrize(
    "args",
    [
        ["--hours", "nan"],
        ["--hours", "inf"],
        ["--hours", "1e9"],
        ["--hours", "-1"],
        ["0"],
        ["1", "--follow", "--format", "json"],
        ["9" * 20],
        ["١"],
    ],
)
def test_jobs_impossible_numbers_refused(args):
    """Impossible numbers are refused."""
    with pytest.raises((UsageError, click.UsageError)):
        command.main(args, standalone_mode=False)
