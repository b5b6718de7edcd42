"""Lines of other launchers behind `dsrun launch --`, as Accelerate's and DeepSpeed's own code reads them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from dsrun.errors import DsrunError, MissingError, UsageError
from dsrun.launch.launcher_line import launcher_line
from dsrun.launch.node.work import LaunchOptions, launch_command, merge_launcher

pytestmark = pytest.mark.train

BIN = Path(sys.executable).parent
YAML = """
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
deepspeed_config: {zero_stage: 2, gradient_accumulation_steps: 4}
mixed_precision: bf16
num_machines: 2
num_processes: 6
machine_rank: 1
main_process_ip: 127.0.0.1
main_process_port: 3000
"""


@pytest.fixture
def environ(tmp_path, monkeypatch):
    """An environment whose launchers are those of this Python, without a default file of Accelerate's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return os.environ


@pytest.mark.parametrize(
    ("line", "same"),
    [
        ("torchrun --nproc-per-node 2 a.py --x", "dsrun launch --nproc 2 -- python a.py --x"),
        (f"{sys.executable} -m torch.distributed.run -m a.b", f"dsrun launch -- {sys.executable} -m a.b"),
        ("python -m torch.distributed.launch --use-env a.py", "dsrun launch -- python a.py"),
        ("python -m torch.distributed.launch a.py 1", "dsrun launch -- python a.py '--local-rank=${local_rank}' 1"),
        (
            "accelerate launch --num_processes 2 --mixed_precision bf16 --num_cpu_threads_per_process 3 a.py --x 1",
            "ACCELERATE_MIXED_PRECISION=bf16 OMP_NUM_THREADS=3 dsrun launch --nproc 2 -- python a.py --x 1",
        ),
        ("accelerate-launch --cpu -m a.b", "ACCELERATE_USE_CPU=True KMP_AFFINITY=granularity=fine,compact,1,0"
         " KMP_BLOCKTIME=1 dsrun launch -- python -m a.b"),
        (
            "deepspeed --num_gpus 2 --master_port 3000 a.py --deepspeed ds.json",
            "dsrun launch --master-port 3000 --nproc 2 -- python a.py '--local_rank=${local_rank}' --deepspeed ds.json",
        ),
        ("deepspeed --no_local_rank --quiet --module a.b", "dsrun launch -- python -m a.b"),
        (
            "deepspeed --include localhost:1,3 a.py",
            "CUDA_VISIBLE_DEVICES=1,3 dsrun launch --nproc 2 -- python a.py '--local_rank=${local_rank}'",
        ),
        (
            "deepspeed --hostfile hosts --exclude gpu2 --no_local_rank a.py",
            "dsrun launch --hostfile hosts --exclude gpu2 -- python a.py",
        ),
    ],
)  # fmt: skip
def test_line_of_a_launcher_is_one_of_dsrun(environ, line, same):
    found = launcher_line(shlex.split(line), environ)
    assert launch_command(found, merge_launcher(LaunchOptions(), found)) == same


def test_file_of_accelerate_config_counts(environ, tmp_path):
    """The file of two machines with three ranks each; Accelerate's plugin for DeepSpeed is set by variables."""
    (tmp_path / "a.yaml").write_text(YAML)
    found = launcher_line(["accelerate", "launch", "--config_file", "a.yaml", "a.py"], environ)
    assert (found.nodes, found.node_rank, found.nproc, found.master_addr, found.master_port) == (
        2, 1, 3, "127.0.0.1", 3000,
    )  # fmt: skip
    said = {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "2"}
    said |= {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4", "ACCELERATE_MIXED_PRECISION": "bf16"}
    assert said.items() <= found.env.items()
    assert not {"MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS"} & found.env.keys()


@pytest.mark.parametrize(
    ("line", "error", "says"),
    [
        ("accelerate launch --num_processes two a.py", UsageError, "accelerate launch: .*invalid int value"),
        ("accelerate launch --config_file none.yaml a.py", UsageError, "accelerate launch: none.yaml is not there"),
        ("accelerate launch --config_file . a.py", UsageError, "is a folder"),
        ("accelerate launch -- --bogus a.py", UsageError, "accelerate launch --bogus"),
        (
            "accelerate launch --num_machines 2 --num_processes 3 --machine_rank 0 --main_process_ip h"
            " --main_process_port 9 a.py",
            UsageError,
            "3 counts those of all 2 machines",
        ),
        ("deepspeed --autotuning run a.py", UsageError, "deepspeed --autotuning"),
        ("deepspeed --bind_cores_to_rank a.py", UsageError, "deepspeed --bind_cores_to_rank"),
        ("deepspeed --include gpu1:0 a.py", UsageError, "there is no hostfile"),
        ("deepspeed --include localhost:a a.py", UsageError, "names no GPUs by number"),
        ("deepspeed --hostfile hosts --num_nodes 2 a.py", UsageError, "on all machines of hosts"),
        ("deepspeed --frobnicate a.py", UsageError, "deepspeed: unrecognized|deepspeed: .*required"),
        ("/no/such/accelerate launch a.py", MissingError, "there is no program"),
        ("/no/such/python -m accelerate.commands.launch a.py", DsrunError, "cannot be started"),
    ],
)
def test_line_that_cannot_be_followed_is_refused(environ, line, error, says):
    with pytest.raises(error, match=says):
        launcher_line(shlex.split(line), environ)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: b: c", r"a.yaml: mapping values are not allowed.* line 1"),
        ("{compute_environment: LOCAL_MACHINE, distributed_type: TPU}", "a.yaml: 'TPU' is not a valid"),
        ("{compute_environment: AMAZON_SAGEMAKER, distributed_type: NO}", "a.yaml: it is for SageMaker"),
        (YAML.replace("{zero_stage: 2,", "{deepspeed_config_file: /nope/ds.json,"), "no file /nope/ds.json"),
    ],
)
def test_file_of_accelerate_that_cannot_be_followed_is_named(environ, tmp_path, text, says):
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(UsageError, match=f"accelerate launch: .*{says}"):
        launcher_line(["accelerate", "launch", "--config_file", "a.yaml", "a.py"], environ)


@pytest.mark.parametrize(
    "line", ["python torchrun.py", "my_train.py torchrun", "accelerate config", "python -m x", "-m x"]
)
def test_other_programs_are_no_launchers(environ, line):
    assert launcher_line(line.split(), environ) is None


def test_ranks_get_what_the_launcher_would_give_them(environ, tmp_path):
    """DeepSpeed's launcher hands each rank its number; dsrun says what it makes of the line."""
    # In one write: of print() under `python -u` each argument is one, and the two ranks' would mix.
    (tmp_path / "a.py").write_text("import os, sys; sys.stdout.write(f\"{os.environ['RANK']} {sys.argv[1:]}\\n\")")
    words = ["--nproc", "2", "--output", "run", "--", "deepspeed", "--num_gpus", "2", "a.py", "--x", "$HOME"]
    done = subprocess.run(
        [sys.executable, "-m", "dsrun", "launch", *words], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        assert f"{rank} ['--local_rank={rank}', '--x', '$HOME']" in done.stderr + done.stdout
    assert "note: deepspeed: the same as dsrun launch --nproc 2" in done.stderr


@pytest.mark.parametrize(
    ("line", "variable"),
    [
        ("accelerate launch --cpu --mixed_precision bf16 a.py", "ACCELERATE_MIXED_PRECISION=bf16"),
        ("deepspeed --include localhost:1 a.py", "CUDA_VISIBLE_DEVICES=1"),
    ],
)
def test_dry_run_prints_the_variables_of_the_launcher(environ, tmp_path, line, variable):
    (tmp_path / "a.py").touch()
    argv = [sys.executable, "-m", "dsrun", "launch", "--dry-run", "--", *line.split()]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=True)
    assert f"export {variable}" in done.stdout.splitlines()


@pytest.mark.parametrize("path", ["venv", "bare"])
def test_render_command_translates_the_line_of_a_launcher(environ, path):
    """Also where only the job's PATH, and not that of the login node, has the launcher."""
    if path == "bare":
        environ["PATH"] = "/usr/bin:/bin"
    argv = [sys.executable, "-m", "dsrun", "render-slurm", "--"]
    line = "accelerate launch --num_processes 2 --mixed_precision bf16 a.py --x"
    done = subprocess.run([*argv, *line.split()], env=environ, capture_output=True, text=True, check=True)
    assert "#SBATCH --gpus-per-node=2" in done.stdout
    assert "export ACCELERATE_MIXED_PRECISION=bf16" in done.stdout
    assert re.search(r"--nproc-per-node=2 .*(?:\\\n.*)*-- a\.py --x &", done.stdout)
