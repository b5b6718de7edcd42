"""Flags of sbatch that mean one task a node are taken; others are refused with the reason."""

import pytest

from dsrun.errors import UsageError
from dsrun.slurm.render.sbatch_flags import translate


@pytest.mark.parametrize(
    ("args", "meant"),
    [
        (["-N", "4", "-n", "4"], ["--nodes", "4"]),
        (["-N4", "--ntasks=4", "--ntasks-per-node", "1"], ["--nodes=4"]),
        (["--nodes", "2", "-G", "a100:8"], ["--nodes", "2", "--gpus-per-node", "a100:4"]),
        (["--gpus=4"], ["--gpus-per-node", "4"]),
        (["--gpus-per-task", "8"], ["--gpus-per-node", "8"]),
        (["--gpus-per-node", "4", "--cpus-per-gpu", "12"], ["--gpus-per-node", "4", "--cpus-per-task", "48"]),
        (["--mem-per-gpu=60G", "--switches", "1@10"], ["--sbatch", "mem-per-gpu=60G", "--sbatch", "switches=1@10"]),
        (["--mem_per_cpu", "4G"], ["--sbatch", "mem-per-cpu=4G"]),
        (["-J", "name", "--time", "1"], ["-J", "name", "--time", "1"]),
    ],
)
def test_flag_of_sbatch_is_translated(args, meant):
    assert translate(args) == meant


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["-N", "2", "-n", "16"], r"--ntasks 16 with 2 nodes \(torch.distributed.run is one task a node"),
        (["--ntasks-per-node=8"], r"--ntasks-per-node 8 with 1 node \(torch.distributed.run is one task a node"),
        (["-N", "3", "-G", "8"], r"--gpus 8 on 3 nodes \(GPUs must be the same on every node"),
        (["--gpus", "many"], r"--gpus 'many' is not a number of GPUs"),
        (["--cpus-per-gpu", "4"], r"--cpus-per-gpu 4: of how many GPUs \(add --gpus-per-node N\)"),
    ],
)
def test_flag_of_sbatch_that_does_not_fit_is_refused(args, says):
    with pytest.raises(UsageError, match=says):
        translate(args)
