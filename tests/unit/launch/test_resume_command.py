"""The command that resumes a run, which the supervisor prints."""

from pathlib import Path

import pytest

from dsrun.launch.context import LocalWorkers
from dsrun.launch.node.work import LaunchOptions, training_job
from dsrun.recipe.resolve import resolve


@pytest.mark.parametrize(
    ("flags", "named", "again", "resumes"),
    [
        ([], True, "the same command", True),
        ([], False, "the same command with --output 'runs/a b'", True),
        (["--resume", "never"], True, "the same command", False),
        (["--resume", "runs/other/checkpoint-5"], True, "the same command", False),
        (["--resume_from_checkpoint", "True"], True, "the same command", True),
    ],
)
def test_resume_command_in_job(flags, named, again, resumes, tmp_path):
    """It names the run folder if the user did not."""
    args = ["--model", "demo-t5", *flags]
    options = LaunchOptions(output="runs/a b" if named else None)
    recipe = resolve(args, tmp_path)
    job = training_job(options, LocalWorkers(1, "cpu", 1), recipe=recipe, run=Path("runs/a b"), env={})
    assert (job.again, job.resumes) == (again, resumes)
