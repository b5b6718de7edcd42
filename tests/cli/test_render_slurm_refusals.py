"""What `dsrun render-slurm` refuses: one line that names the flag, or the line of run.yaml."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.usefixtures("nowhere")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--nodes", "0"], "--nodes: 0 is less than 1"),
        (["--nodes", "two"], "--nodes: 'two' is not a whole number"),
        (["--gpus-per-node", "many"], "is not a number of GPUs"),
        (["--gpus-per-node", "4", "--gres", "gpu:4"], "both ask for GPUs"),
        (["--gpus-per-node", "2", "--nproc", "4"], "each node has 2 GPUs"),
        (["--gres", "gpu:a:b:c:4"], "is not a list of resources"),
        (["--time", "soon"], "is not a time limit"),
        (["--mem", "lots"], "is not a memory size"),
        (["--signal-lead", "600", "--time", "5"], "before the start"),
        (["--comment", "two\nlines"], "--comment: 'two\\nlines' contains a line break"),
        (["--comment", " x"], "begins or ends with a blank"),
        (["--job-name", ""], "is empty"),
        (["--array-flag", "--seed"], "without --array"),
        (["--array", "0-3", "--", "train", "--model", "demo-t5", "--output", "o"], "would all train in o"),
        (["--venv", "v", "--conda", "c"], "exclude each other"),
        (["--container-image", "i", "--apptainer", "i"], "exclude each other"),
        (["--apptainer", "i", "--venv", "v"], "that of the image"),
        (["--container-mounts", "/data"], "without a container"),
        (["--env", "A-B=c"], "is not a variable's name"),
        (["--env", "ALL"], "is the default"),
        (["--interface", "eth0; touch x"], "is not a list of interfaces"),
        (["--network", "infinband"], "infiniband"),
        (["--sbatch", "partition=x"], "write --partition"),
        (["--sbatch", "ntasks=8"], "--nproc"),
        (["--sbatch", "signal=USR2@9"], "--signal-lead"),
        (["--sbatch", "-x y"], "is not key=value"),
        (["--sbatch", "het-group=1"], "heterogeneous"),
        (["--nodes", "1", ":", "--nodes", "2"], "heterogeneous"),
        (["--het-group=0"], "heterogeneous"),
        (["--stage", "env.zip"], "neither a wheel nor a tar file"),
        (["train", "--model", "demo-t5"], "write the program after --"),
        (["--nodez", "4"], "--nodes"),
        (["--", "python"], "no script is named"),
        (["--", ""], "empty word"),
        (["-o", "slurm-%j.out"], "--log"),
        (["--template", "none.j2"], "No such file"),
        (["--config", "none.yaml"], "cannot be read"),
    ],
)
def test_render_slurm_usage_errors_are_one_line(refused, args, message):
    assert message in refused("render-slurm", *args)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("nodez: 4", "run.yaml:1: slurm.nodez: the slurm section has no such key (did you mean nodes?)"),
        ("nodes: 1-4", "run.yaml:1: slurm.nodes: '1-4' is not a whole number"),
        ("nodes: [1, 2]", "run.yaml:1: slurm.nodes: takes one value, not 2"),
        ("requeue: perhaps", "is not true or false"),
        ("network: token-ring", "is not one of infiniband, roce, efa, slingshot, ethernet"),
        ("gres: {a: {b: c}}", "neither a value nor a list of values"),
    ],
)
def test_render_slurm_run_file_errors_name_line(dsrun, here, section, message):
    (here / "run.yaml").write_text(f"slurm: {{{section}}}\n")
    done = dsrun("render-slurm", "--", "./x")
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
