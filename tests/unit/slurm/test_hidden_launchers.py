"""Launchers behind other commands, which each worker would start again."""

import pytest

from dsrun.errors import UsageError
from dsrun.slurm.render.program import any_program


@pytest.mark.parametrize(
    "line",
    [
        "dsrun launch -- python x.py",
        "env A=1 torchrun x.py",
        "uv run torchrun x.py",
        "bash my.sbatch",
        "nohup deepspeed x.py",
    ],
)
def test_launcher_behind_another_command_is_rejected(line):
    with pytest.raises(UsageError, match="one worker per GPU itself"):
        any_program(line.split())


@pytest.mark.parametrize(
    "line", ["env A=1 python x.py", "uv run python x.py", "bash run.sh", "dsrun plan --model torchrun"]
)
def test_other_wrapped_programs_are_taken(line):
    assert any_program(line.split()).entry == line.split()[0]
