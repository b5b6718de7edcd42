"""Who is a worker: torchrun's variables, srun's tasks, and shells that only look like one."""

import pytest

from dsrun.errors import UsageError
from dsrun.system.env import WorkerPlace, expand_counts, first_host, worker_from_env

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
}
SRUN = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "9",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_NTASKS": "11",
    "SLURM_STEP_NUM_TASKS": "11",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2),3",
    "SLURM_STEP_NODELIST": "gpu[007-008,11]",
}
# As a batch script sees them: many tasks in the job, no step.
SBATCH = {
    "SLURM_JOB_ID": "4711",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "16",
    "SLURM_TASKS_PER_NODE": "8(x2)",
    "SLURM_JOB_NODELIST": "gpu[1-2]",
}


def test_torchrun_worker():
    worker = worker_from_env(TORCHRUN)
    assert worker == WorkerPlace(
        rank=3,
        world_size=4,
        local_rank=1,
        local_world_size=2,
        master_addr="node1",
        master_port=29500,
        source="torchrun",
    )
    assert worker.variables() == TORCHRUN
    assert not worker.is_main


def test_srun_worker_round_trip_as_torchrun_worker():
    """A worker is derived from srun's variables, and reads back as a torchrun worker."""
    worker = worker_from_env(SRUN)
    assert worker
    assert (worker.rank, worker.world_size, worker.local_rank, worker.local_world_size) == (9, 11, 1, 3)
    assert (worker.master_addr, worker.source) == ("gpu007", "slurm")
    again = worker_from_env({**SRUN, **worker.variables()})
    assert again
    assert again.source == "torchrun"
    assert again.variables() == worker.variables()


def test_srun_master_port_per_step():
    """All tasks of a step meet at one port, and steps differ."""

    def port(**changes):
        worker = worker_from_env(SRUN | changes)
        assert worker
        return worker.master_port

    assert port() == port(SLURM_PROCID="0", SLURM_LOCALID="0", SLURM_NODEID="0")
    assert port() != port(SLURM_STEP_ID="1")
    assert port() != port(SLURM_JOB_ID="4712")
    assert 1024 < port(SLURM_JOB_ID="99999999") < 32768
    assert port(MASTER_PORT="29501") == 29501


def test_srun_local_world_size_on_one_node():
    """On one node, srun's tasks per node are not needed."""
    environ = {k: v for k, v in SRUN.items() if k != "SLURM_STEP_TASKS_PER_NODE"} | {
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_NODEID": "0",
        "SLURM_LOCALID": "9",
        "SLURM_STEP_NODELIST": "gpu1",
    }
    worker = worker_from_env(environ)
    assert worker
    assert worker.local_world_size == 11


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"RANK": ""},
        # an image of a container
        {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost"},
        # a profile, and a job script before its srun or torchrun
        {"WORLD_SIZE": "1"},
        {"WORLD_SIZE": "8", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"},
        SBATCH,
        # salloc with an interactive step, or `srun --pty bash`
        SBATCH | {"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"},
        SRUN | {"SLURM_STEP_NUM_TASKS": "1"},
    ],
)
def test_environments_that_are_no_worker(environ):
    assert worker_from_env(environ) is None


def test_torchrun_inside_srun_step_is_torchrun_worker():
    worker = worker_from_env(SRUN | TORCHRUN)
    assert worker
    assert worker.source == "torchrun"


@pytest.mark.parametrize("name", ["WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"])
def test_missing_torchrun_variable_named(name):
    environ = {key: value for key, value in TORCHRUN.items() if key != name}
    with pytest.raises(UsageError, match=rf"RANK is set but {name} is not") as caught:
        worker_from_env(environ)
    assert caught.value.fix


def test_launcher_variables_without_rank_rejected():
    """Variables of a launcher without a rank are refused, and those missing are named."""
    environ = {key: value for key, value in TORCHRUN.items() if key not in ("RANK", "MASTER_PORT")}
    with pytest.raises(UsageError, match=r"LOCAL_RANK is set but RANK, MASTER_PORT are not") as caught:
        worker_from_env(environ)
    assert "unset LOCAL_RANK" in str(caught.value.fix)
    # srun has said who this is; a job script may name its LOCAL_RANK after SLURM_LOCALID.
    assert worker_from_env(SRUN | {"LOCAL_RANK": "1"})


def test_deepspeed_launcher_local_size():
    """The deepspeed launcher says LOCAL_SIZE for the local world size."""
    environ = {key: value for key, value in TORCHRUN.items() if key != "LOCAL_WORLD_SIZE"}
    worker = worker_from_env(environ | {"LOCAL_SIZE": "2"})
    assert worker
    assert worker.local_world_size == 2
    alone = worker_from_env(environ | {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"})
    assert alone
    assert alone.local_world_size == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"RANK": "one"}, "RANK='one' is not an integer"),
        ({"RANK": "9" * 5000}, "RANK='9+…' is not an integer"),
        ({"WORLD_SIZE": "4.0"}, "WORLD_SIZE='4.0'"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT='http'"),
        ({"RANK": "4"}, "RANK 4 is outside WORLD_SIZE 4"),
        ({"RANK": "-1"}, "RANK -1"),
        ({"LOCAL_RANK": "2"}, "LOCAL_RANK 2 is outside LOCAL_WORLD_SIZE 2"),
        ({"LOCAL_WORLD_SIZE": "8"}, "LOCAL_WORLD_SIZE 8 exceeds WORLD_SIZE 4"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT 70000 is not a valid port"),
    ],
)
def test_invalid_torchrun_variables_rejected(changes, said):
    with pytest.raises(UsageError, match=said):
        worker_from_env(TORCHRUN | changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"SLURM_STEP_TASKS_PER_NODE": "4"}, "node 2"),
        ({"SLURM_STEP_NODELIST": ""}, "SLURM_STEP_NODELIST"),
        ({"SLURM_PROCID": ""}, "SLURM_PROCID"),
        ({"SLURM_STEP_NUM_TASKS": "9" * 5000}, "SLURM_STEP_NUM_TASKS"),
        ({"SLURM_STEP_TASKS_PER_NODE": "9" * 5000}, "node 2"),
    ],
)
def test_invalid_srun_step_variables_rejected(changes, said):
    with pytest.raises(UsageError, match=said):
        worker_from_env(SRUN | changes)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu1", "gpu1"),
        ("gpu1,gpu2", "gpu1"),
        ("gpu[03-05,9],login", "gpu03"),
        ("rack[2,4]-gpu", "rack2-gpu"),
        ("n-a[10],n-b", "n-a10"),
        ("", None),
    ],
)
def test_first_host(nodes, first):
    assert first_host(nodes) == first


def test_expand_counts():
    assert expand_counts("4(x2),3") == [4, 4, 3]
    assert expand_counts("8") == [8]
    assert expand_counts("") == []
    assert expand_counts("many") == []
    assert expand_counts(f"4(x{'9' * 5000})") == []
