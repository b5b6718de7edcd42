"""The program gets its arguments as they were typed, whatever torchrun does with them on the way."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from dsrun.launch.context import LocalWorkers, TrainingJob
from dsrun.launch.environment import run_arguments, run_command
from dsrun.system.net import free_port

pytestmark = pytest.mark.train


def test_torchrun_passes_argv_with_dollar_signs_unchanged(tmp_path):
    """Dollar signs, spaces and quotes reach the program as they were typed."""
    (tmp_path / "say_words.py").write_text("import json, sys; print('WORDS', json.dumps(sys.argv[1:]))\n")
    words = ["$local_rank", "$$HOME", "${x}", "a b", "--cost=5$", "'\"`"]
    job = TrainingJob(
        topology=LocalWorkers(1, "cpu", 1), run=tmp_path, program=["--module", "say_words", *words], env={}
    )
    argv = run_command(run_arguments(job, attempt=0, port=free_port()))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    said = next(line for line in done.stdout.splitlines() if line.startswith("WORDS "))
    assert json.loads(said.removeprefix("WORDS ")) == words
