"""`dsrun cluster` and `dsrun plan --cluster` as a user calls them, with the recorded answers of a real cluster."""

from __future__ import annotations

import json

import pytest

from tests.slurm_recordings import recorded, stand_in, stand_in_cluster

T5 = {
    "model_type": "t5",
    "d_model": 1024,
    "d_ff": 4096,
    "num_layers": 24,
    "num_heads": 16,
    "vocab_size": 32128,
}


@pytest.fixture
def programs(programs):
    """They answer for the recorded cluster."""
    stand_in_cluster(programs)
    return programs


def test_cluster_tables(dsrun, programs):
    done = dsrun("cluster")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("cluster lab, SLURM 22.05.8: 5 nodes, 8 of 14 GPUs free")
    node1 = next(line for line in lines if line.startswith("node1 "))
    assert " ".join(node1.split()) == "node1 idle 4 a100 40 or 80 GiB 8.0 4 64 of 64 500 GiB"
    assert "idle+drain (bad disk, State=IDLE soon" in next(line for line in lines if line.startswith("node4 "))
    gpu = next(line for line in lines if line.startswith("gpu "))
    assert gpu.split()[:4] == ["gpu", "up", "2-00:00:00", "3"]
    assert gpu.endswith("default time 1:00:00; nodes at most 2; accounts ml phys")
    assert any(line.startswith("main* ") for line in lines)
    assert "sacctmgr" not in (programs / "calls").read_text()


def test_cluster_equal_nodes_share_a_row(dsrun, programs):
    nodes = "".join(
        f"NodeName=g{number:02} CPUTot=8 RealMemory=1024 State=IDLE Gres=gpu:h100:8 Partitions=main\n"
        for number in range(1, 5)
    )
    stand_in(
        programs,
        "scontrol",
        ("show node", nodes),
        ("show partition", ""),
        ("show config", recorded("config")),
        ("show", ""),
    )
    lines = dsrun("cluster").stdout.splitlines()
    assert lines[3].startswith("g[01-04]  idle   8 h100")


def test_cluster_json(dsrun, programs):
    output = json.loads(dsrun("cluster", "--format", "json").stdout)
    assert (output["version"], output["name"], output["slurm"]) == (1, "lab", "22.05.8")
    node = next(each for each in output["nodes"] if each["name"] == "node2")
    assert node["gpus"][1] == {
        "type": "rtx_2080_ti", "model": "GeForce RTX 2080 Ti", "count": 2, "busy": 2, "capability": "7.5",
        "memory_gib": [11],
    }  # fmt: skip
    limits = {each["name"]: each["time_limit_s"] for each in output["partitions"]}
    assert (limits["gpu"], limits["main"]) == (172800, None)


def test_cluster_of_one_partition(dsrun, programs):
    output = json.loads(dsrun("cluster", "--partition", "debug", "--format", "json").stdout)
    assert [each["name"] for each in output["nodes"]] == ["node1", "node4"]
    assert [each["name"] for each in output["partitions"]] == ["debug"]
    done = dsrun("cluster", "--partition", "debgu")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: there is no partition 'debgu' (did you mean debug?)\n"


def test_cluster_without_slurm(dsrun, environ):
    environ["PATH"] = "/nowhere"
    done = dsrun("cluster")
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith("error: there is no SLURM cluster here")
    assert done.stderr.count("\n") == 1


def test_cluster_when_controller_does_not_answer(dsrun, programs):
    stand_in(
        programs,
        "scontrol",
        ("", "", "slurm_load_partitions: Unable to contact slurm controller (connect failure)\n", 1),
    )
    done = dsrun("cluster")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Unable to contact slurm controller" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.fixture
def plan(dsrun, programs, here):
    (here / "config.json").write_text(json.dumps(T5))

    def call(*args):
        return dsrun("plan", "--count", "shapes", "--model", str(here), *args)

    return call


def test_plan_for_partition_with_one_gpu_type(plan):
    done = plan("--partition", "debug", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert "partition debug: 1 node with 4 a100; planned for 1 with 4 each" in done.stderr
    output = json.loads(done.stdout)
    assert "4" in json.dumps(output)
    text = plan("--partition", "debug").stdout
    assert "4 × a100 (40 GiB) in 1 node" in text
    assert "4 × a100 (80 GiB)" in plan("--partition", "debug", "--gpu-memory", "80").stdout


def test_plan_lists_several_gpu_types(plan):
    done = plan("--cluster")
    assert (done.returncode, done.stdout) == (2, "")
    assert "GPUs of 5 kinds: a100 (1 node with 4, 1 node with 2), rtx_2080_ti (1 node with 2)" in done.stderr
    assert "choose one: --gpus a100" in done.stderr


def test_plan_for_chosen_gpu_type(plan):
    done = plan("--cluster", "--gpus", "rtx_2080_ti")
    assert "2 × rtx_2080_ti (11 GiB) in 1 node" in done.stdout
    assert "2 × 3g.20gb (20 GiB)" in plan("--cluster", "--gpus", "3g.20gb").stdout
    # Two nodes have at least two a100.
    assert "4 × a100 (40 GiB) in 2 nodes" in plan("--cluster", "--gpus", "A100", "--nodes", "2").stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--cluster", "--gpus", "v100"], "no GPUs called v100 (it has a100"),
        (["--cluster", "--gpus", "a100", "--nodes", "3"], "--nodes is 3 (--nodes 2)"),
        (["--partition", "old"], "SLURM does not name the GPU model of node5"),
        (["--partition", "empty"], "partition empty has no GPUs"),
        (["--partition", "nope"], "there is no partition 'nope'"),
    ],
)
def test_plan_for_cluster_refusals(plan, args, message):
    done = plan(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_cluster_table_cuts_long_lists_of_nodes(dsrun, programs):
    """Thousands of nodes without a pattern do not fill screens."""
    nodes = "".join(
        f"NodeName=n{number * 7919 % 100_003:06} CPUTot=8 RealMemory=1024 State=IDLE Gres=gpu:h100:8 Partitions=main\n"
        for number in range(2000)
    )
    stand_in(
        programs,
        "scontrol",
        ("show node", nodes),
        ("show partition", ""),
        ("show config", recorded("config")),
        ("show", ""),
    )
    done = dsrun("cluster")
    assert max(map(len, done.stdout.splitlines())) < 160
    assert "… (2000 nodes)" in done.stdout
