"""`dsrun jobs`: numbers that neither SLURM nor the calendar has."""

from __future__ import annotations

import pytest

from dsrun.cli.jobs import command
from dsrun.errors import UsageError


@pytest.mark.parametrize(
    "words",
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
def test_numbers_that_cannot_be_are_refused(words):
    with pytest.raises(UsageError):
        command.main(words, standalone_mode=False)
