"""`dsrun train` on one, two and four nodes: it completes, and the number of nodes does not show in the loss."""

from __future__ import annotations

import pytest

from dsrun.runs.folder import RunFolder
from dsrun.runs.manifest import is_complete
from tests.slurm.jobs import Training

# Rounding to bf16 would hide small differences. The demo has no dropout, whose random numbers depend on the ranks.
DEMO = [
    "--model", "demo-t5", "--bf16", "false", "--max-steps", 6, "--logging-steps", 1,
    "--global-batch-size", 16, "--max-eval-samples", 16,
]  # fmt: skip
SHAPES = {
    "one node, ZeRO-2": (1, 1, 2),
    "two nodes, ZeRO-2": (2, 2, 2),
    "one node, ZeRO-3": (1, 1, 3),
    "four nodes, ZeRO-3": (4, 2, 3),
}
"""Nodes, ranks on each, ZeRO stage. A model from scratch begins with other weights under ZeRO-3 than under ZeRO-2."""


@pytest.fixture(scope="session")
def demos(ada):
    """The demo, trained on each number of nodes, one after another; the jobs' default folder holds each run."""
    runs = {}
    for name, (nodes, ranks, stage) in SHAPES.items():
        cwd = ada.folder(name)
        options = ["--nodes", nodes, "--gpus-per-node", "0", "--nproc", ranks]
        job = ada.submit(*options, program=["train", *DEMO, "--zero", stage], cwd=cwd)
        job.wait_for("COMPLETED")
        runs[name] = Training(job, RunFolder(cwd / "runs" / f"demo-t5-{job.id}"))
    return runs


@pytest.mark.parametrize("shape", SHAPES)
def test_demo_training_completes_on_all_nodes(demos, shape):
    nodes, ranks, stage = SHAPES[shape]
    training = demos[shape]
    assert training.job.exit_code == 0
    assert len(training.job.machines()) == nodes
    assert training.events[-1] == "end"
    folder = training.folder
    assert folder.finished.exists()
    assert (folder.model / "model.safetensors").exists()
    (step, checkpoint), *_ = folder.checkpoints()
    assert step == 6
    assert is_complete(checkpoint)
    assert f"ZeRO-{stage} on {nodes * ranks} CPU rank" in (folder.path / "console.log").read_text()
    assert len(list(folder.logs.glob("rank-*.log"))) == nodes * ranks


@pytest.mark.parametrize("nodes", ["two nodes, ZeRO-2", "four nodes, ZeRO-3"])
def test_multi_node_loss_equals_single_node_loss(demos, nodes):
    alone = demos[f"one node, {nodes[-6:]}"].losses
    assert sorted(alone) == list(range(1, 7))
    # fp32 gradients are summed in another order.
    assert demos[nodes].losses == pytest.approx(alone, rel=2e-4)


def test_invalid_data_fails_job_with_worker_exit_code(ada, place, tiny):
    """torch.distributed.run ends with 1, whatever the workers said."""
    (place / "data.jsonl").write_text('{"source": "w1", "target": "w2"}\n')
    flags = [*tiny[:2], "--bf16", "false", "--train-file", "data.jsonl", "--output", "run"]
    script = ada.render("--gpus-per-node", "0", program=["train", *flags], cwd=place)
    (place / "data.jsonl").write_text("this is no JSON\n")
    job = ada.sbatch(script, cwd=place).wait_for("FAILED")
    assert job.exit_code == 2
    assert "error: " in job.log
    assert "data.jsonl" in job.log
    assert job.restarts == 0
