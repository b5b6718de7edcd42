"""Launchers behind other commands, which each worker would start again."""

import shlex

import pytest

from dsrun.errors import UsageError
from dsrun.launch.program import any_program, refuse_scripts


@pytest.mark.parametrize(
    "line",
    [
        "dsrun launch -- python x.py",
        "env A=1 torchrun x.py",
        "uv run torchrun x.py",
        "bash my.sbatch",
        "nohup deepspeed x.py",
        "accelerate-launch x.py",
        "colossalai run x.py",
        "uv run --with torch torchrun x.py",
        "uv --directory src run --extra cu12 --frozen torchrun x.py",
        "uv run -m torch.distributed.run x.py",
        "uv run python -u -m torch.distributed.run x.py",
        "conda run -n train accelerate launch x.py",
        "timeout -k 9 5h nice -n 5 env -u X A=1 torchrun x.py",
        "python -m llamafactory.cli train x.yml",
        "uv run -m axolotl.cli.main train x.yml",
        "fabric run x.py",
        "tune run --nproc_per_node 4 full_finetune_distributed --config x",
        "bash -c 'source env.sh && CUDA_LAUNCH_BLOCKING=1 exec torchrun x.py'",
    ],
)
def test_launcher_behind_another_command_is_rejected(line):
    with pytest.raises(UsageError, match="one worker per GPU itself"):
        any_program(shlex.split(line))


@pytest.mark.parametrize(
    "line",
    [
        "env A=1 python x.py",
        "axolotl preprocess x.yml",
        "axolotl train x.yml --launcher python",
        "python -m axolotl.cli.train x.yml",
        "llamafactory-cli export x.yml",
        "tune run full_finetune_distributed --config x",
        "swift sft --model x",
        "uv run python x.py",
        "uv run --with deepspeed python x.py --launcher torchrun",
        "bash run.sh",
        "bash -c 'python x.py; sbatch next.sh'",
        "dsrun plan --model torchrun",
    ],
)
def test_other_wrapped_programs_are_taken(line):
    words = shlex.split(line)
    program = any_program(words)
    assert program.entry == words["-m" in words and 2]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("axolotl train x.yml", "-- python -m axolotl.cli.train"),
        ("axolotl train x.yml --launcher accelerate --lr 1 -- --num_processes 4", r"cli.train x.yml --lr 1\)$"),
        ("lmf train x.yml", "-- python -m llamafactory.launcher x.yml"),
        ("xtuner train c.py", "-- python -m xtuner.tools.train --launcher pytorch c.py"),
        ("tune run --nnodes 2 r --config x", "-- tune run RECIPE"),
        ("trl sft --config x.yaml", "-- python -m trl.scripts.sft --config x.yaml"),
        ("/opt/bin/llamafactory-cli train x.yml", "-- python -m llamafactory.launcher"),
        ("accelerate test", "accelerate test: of accelerate's"),
        ("TOKEN=secret python x.py", "-- TOKEN=…"),
    ],
)
def test_refusal_says_what_is_meant(line, says):
    with pytest.raises(UsageError, match=says):
        any_program(line.split())


@pytest.mark.parametrize("name", ["NPROC_PER_NODE", "NNODES"])
def test_trainer_that_reads_from_variables_that_it_starts_workers(monkeypatch, name):
    """swift runs torch.distributed.run where one of these is exported, which a job inherits."""
    for words in (["swift", "eval"], ["swift", "rlhf", "--model", "x"], ["python", "-m", "swift.cli.rlhf"]):
        assert any_program(words)
    monkeypatch.setenv(name, "2")
    with pytest.raises(UsageError, match=r"-- python -m swift.cli.rlhf --model x\)$"):
        any_program(["swift", "rlhf", "--model", "x"])
    for words in (["swift", "eval"], ["python", "-m", "swift.cli.rlhf"]):
        assert any_program(words)


def test_shell_scripts_that_start_workers_are_rejected(tmp_path):
    """A script for sbatch, and one with torchrun in it, would run on every GPU."""
    (tmp_path / "job.sh").write_text("#!/bin/bash\n#SBATCH --nodes=2\nsrun hostname\n")
    (tmp_path / "run.sh").write_text("#!/usr/bin/env bash\nset -e\nuv run torchrun --nproc-per-node 8 x.py\n")
    (tmp_path / "good.sh").write_text("#!/bin/sh\n# not torchrun\nexec python x.py --launcher torchrun\n")
    (tmp_path / "good.py").write_text("#!/usr/bin/python\n#SBATCH --nodes=2\n")
    for words in (["bash", "job.sh"], ["./job.sh"]):
        with pytest.raises(UsageError, match=r"job.sh is a script for sbatch"):
            refuse_scripts(words, tmp_path)
    for words in (["sh", "run.sh", "a"], ["./run.sh"]):
        with pytest.raises(UsageError, match=r"run.sh:3: torchrun starts workers"):
            refuse_scripts(words, tmp_path)
    for words in (["bash", "good.sh"], ["./good.sh"], ["./good.py"], ["bash", "none.sh"], ["bash"], ["./", "x"]):
        refuse_scripts(words, tmp_path)
