"""Where `dsrun launch` finds itself, from the command line and the environment alone."""

from __future__ import annotations

import pytest

from dsrun.errors import UsageError
from dsrun.launch.context import LaunchRequest, LocalLauncher, SrunLauncher, SshLauncher
from dsrun.launch.detection.detect import detect

BATCH = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_JOB_NODELIST": "gpu[03-04]",
    "SLURMD_NODENAME": "gpu03",
    "SLURM_PROCID": "0",
}
STEP = {
    **BATCH,
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "gpu[03-04]",
    "SLURM_NODEID": "1",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    "MASTER_ADDR": "gpu03",
}


def place(environ=None, **request):
    return detect(LaunchRequest(**request), environ or {})


def at(environ=None, **request):
    """(node, nodes, host, port)"""
    found = place(environ, **request)
    assert isinstance(found, LocalLauncher)
    return found.node, found.nodes, found.host, found.port


def test_topology_defaults_to_single_node_on_any_port():
    """With neither flags nor variables the run is this machine alone, on any free port."""
    assert at() == (0, 1, "127.0.0.1", None)
    assert at(nodes=1) == at(nodes=1, node_rank=0) == (0, 1, "127.0.0.1", None)
    assert at(master_port=1234) == (0, 1, "127.0.0.1", 1234)


def test_node_rank_flags_default_to_torch_master_port():
    """With --nodes and --node-rank the port is torch's default unless --master-port is given."""
    assert at(nodes=3, node_rank=2, master_addr="gpu1") == (2, 3, "gpu1", 29500)
    assert at(nodes=3, node_rank=2, master_addr="gpu1", master_port=1234) == (2, 3, "gpu1", 1234)
    assert place(nodes=3, node_rank=2, master_addr="gpu1").own_terminal


def test_node_rank_and_master_addr_from_environment():
    """NODE_RANK, MASTER_ADDR and MASTER_PORT count as well; flags take precedence."""
    environ = {"NODE_RANK": "1", "MASTER_ADDR": "gpu1", "MASTER_PORT": "1234"}
    assert at(environ, nodes=2) == (1, 2, "gpu1", 1234)
    assert at(environ, nodes=2, master_addr="gpu2", master_port=99) == (1, 2, "gpu2", 99)


def test_environment_alone_does_not_make_run_multi_node():
    """Without --nodes, NODE_RANK and MASTER_ADDR do not make two nodes of one."""
    assert at({"NODE_RANK": "1", "MASTER_ADDR": "gpu1", "WORLD_SIZE": "8"}) == (0, 1, "127.0.0.1", None)


def test_hostfile_selects_ssh_launcher():
    """A hostfile means launching through ssh, also inside a SLURM job."""
    assert place(hostfile=True) == SshLauncher()
    assert place(BATCH, hostfile=True, master_addr="gpu1", master_port=1) == SshLauncher()


def test_slurm_step_with_one_task_per_node():
    assert at(STEP)[:3] == (1, 2, "gpu03")
    assert not place(STEP).returns
    assert at(STEP, master_port=99, master_addr="ib-gpu03") == (1, 2, "ib-gpu03", 99)
    assert not place(STEP).own_terminal


def test_slurm_master_ports_do_not_collide():
    """Steps and jobs on one node keep off one another's two ports."""
    jobs = [{"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)} for job in range(70, 75) for step in range(5)]
    ports = [at({**STEP, **job})[3] for job in jobs]
    assert len({each for port in ports for each in (port, port + 1)}) == 2 * len(jobs)
    assert all(15000 <= port < 30000 for port in ports)


def test_port_that_nobody_named_may_be_another():
    """The line of a rendered job names one; its script has made it from the job's number."""
    assert place(STEP).chosen_port
    assert not place(STEP, master_port=1234).chosen_port
    assert place({**STEP, "DSRUN_FAILURES": "run/logs/slurm-12-0"}, master_port=15024).chosen_port


def test_run_id_shared_by_tasks_of_one_slurm_step():
    """All tasks of a step get the same run id; other steps and requeued jobs get another."""
    other_node = {**STEP, "SLURM_NODEID": "0"}
    assert place(STEP).run == place(other_node).run
    requeued = {**STEP, "SLURM_RESTART_COUNT": "1"}
    assert len({place(each).run for each in (STEP, {**STEP, "SLURM_STEP_ID": "1"}, requeued)}) == 3


def test_single_node_slurm_step_in_multi_node_job():
    """A step on one node of a larger job is a single-node run."""
    one = {**STEP, "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NODEID": "0"}
    assert at(one) == (0, 1, "127.0.0.1", None)


@pytest.mark.parametrize(
    "step",
    [{}, *({"SLURM_STEP_ID": text} for text in ("4294967291", "4294967290", "²", "x", "9" * 5000))],
    ids=range(6),
)
def test_slurm_batch_shell_launches_through_srun(step):
    """The batch shell of a job starts the run on all nodes through srun."""
    assert place({**BATCH, **step, "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1"}) == SrunLauncher(2)


def test_slurm_batch_shell_of_single_node_job():
    """The batch shell of a single-node job already runs on its node."""
    assert at({**BATCH, "SLURM_JOB_NUM_NODES": "1"}) == (0, 1, "127.0.0.1", None)
    assert at(BATCH, nodes=1) == (0, 1, "127.0.0.1", None)


def test_salloc_shell_on_login_node_launches_through_srun():
    """The shell of salloc may be on the login node, so even one node is reached through srun."""
    login = {name: value for name, value in BATCH.items() if name != "SLURMD_NODENAME"}
    assert place(login) == SrunLauncher(2)
    assert place({**login, "SLURM_JOB_NUM_NODES": "1"}) == SrunLauncher(1)


def test_mpirun_with_one_process_per_node():
    assert at(OPEN_MPI) == (1, 2, "gpu03", 29500)
    assert at({"PMI_RANK": "0", "PMI_SIZE": "2"}, master_addr="gpu1") == (0, 2, "gpu1", 29500)
    # Open MPI starts its daemons as steps of SLURM.
    assert at({**STEP, **OPEN_MPI}) == (1, 2, "gpu03", 29500)
    # srun tells PMI's numbers as well.
    assert place({**STEP, "PMI_RANK": "1", "PMI_SIZE": "2"}) == place(STEP)


POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "JOB_COMPLETION_INDEX": "2"}


def test_pod_of_indexed_job_is_node_of_its_index():
    """The completion index is the node's number; --nodes or PET_NNODES says of how many, and a lost pod comes back."""
    assert at(POD, nodes=4, master_addr="run-0.run") == (2, 4, "run-0.run", 29500)
    assert at({**POD, "MASTER_ADDR": "run-0.run", "MASTER_PORT": "1234"}, nodes=4) == (2, 4, "run-0.run", 1234)
    petted = {**POD, "PET_NNODES": "4", "PET_MASTER_ADDR": "run-0.run", "PET_MASTER_PORT": "1234"}
    assert at(petted) == at(petted, nodes=4, node_rank=2) == (2, 4, "run-0.run", 1234)
    found = place(petted)
    assert (found.how, found.returns, found.own_terminal) == ("node 2 of 4, a pod of Kubernetes", True, False)
    assert found.recreated
    assert found.run == place({**petted, "JOB_COMPLETION_INDEX": "0"}).run


def test_pod_alone_is_one_machine():
    """Without a number of nodes the index counts something else, such as the runs of a sweep."""
    assert at(POD) == at(POD, nodes=1) == (0, 1, "127.0.0.1", None)
    assert place(POD).how == "one machine, a pod of Kubernetes"
    assert place({"JOB_COMPLETION_INDEX": "2"}).how == "one machine"


REFUSED = {
    "nodes without a rank": ({}, {"nodes": 2}, "--nodes 2, but not which of them this is"),
    "rank without nodes": ({}, {"node_rank": 1}, "--node-rank 1, but not of how many"),
    "rank too large": ({}, {"nodes": 2, "node_rank": 2, "master_addr": "a"}, "the 2 nodes are 0 to 1"),
    "negative rank": ({}, {"nodes": 2, "node_rank": -1, "master_addr": "a"}, "--node-rank -1"),
    "no address": ({}, {"nodes": 2, "node_rank": 1}, "not where the first one is"),
    "a flag's value left out": (
        {},
        {"nodes": 2, "node_rank": 0, "master_addr": "--dry-run"},
        "'--dry-run' is not a valid name of node 0",
    ),
    "two addresses": ({"MASTER_ADDR": "a b"}, {"nodes": 2, "node_rank": 0}, "'a b' is not a valid name of node 0"),
    "port": ({}, {"master_port": 65535}, "--master-port 65535"),
    "odd port": ({"MASTER_PORT": "x"}, {"nodes": 2, "node_rank": 1, "master_addr": "a"}, "MASTER_PORT='x'"),
    "NODE_RANK": ({"NODE_RANK": "2"}, {"nodes": 2, "master_addr": "a"}, "NODE_RANK=2, but --nodes 2"),
    "hostfile and nodes": ({}, {"hostfile": True, "nodes": 2}, "--nodes 2 with --hostfile"),
    "hostfile and rank": (
        {},
        {"hostfile": True, "node_rank": 0, "nodes": 1},
        "--nodes 1 with --hostfile",
    ),
    "hostfile in a step": (STEP, {"hostfile": True}, "--hostfile in a step of SLURM"),
    "a worker": ({"RANK": "3", "LOCAL_RANK": "1"}, {}, "this process is worker 3 of a run already"),
    "a worker alone": ({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}, {}, "worker 0 of a run already"),
    "counted machines": ({"RANK": "1", "WORLD_SIZE": "2"}, {}, "RANK is set, without LOCAL_RANK"),
    "a task per GPU": (
        {**STEP, "SLURM_STEP_NUM_TASKS": "16"},
        {},
        r"srun started 16 tasks on 2 nodes.*srun --ntasks-per-node=1",
    ),
    "a rank expanded on the batch host": (
        STEP,
        {"nodes": 2, "node_rank": 0, "master_addr": "a"},
        "--node-rank 0, but this is node 1 of the 2",
    ),
    "other nodes than the step's": (STEP, {"nodes": 4}, "--nodes 4, but this is node 1 of the 2"),
    "more nodes than the job's": (BATCH, {"nodes": 4}, "--nodes 4, but SLURM job 4711 has 2"),
    "a process per GPU": (
        {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "8"},
        {},
        "mpirun has started 8 processes on this machine",
    ),
    "other nodes than mpirun's": (OPEN_MPI, {"nodes": 3}, "--nodes 3, but mpirun has started 2"),
    "a pod too many": (POD, {"nodes": 2, "master_addr": "a"}, "JOB_COMPLETION_INDEX=2, but the 2 nodes are 0 to 1"),
    "another pod": (POD, {"nodes": 4, "node_rank": 1, "master_addr": "a"}, "--node-rank 1, but JOB_COMPLETION_INDEX"),
    "an index of a sweep": (
        POD,
        {"nodes": 2, "node_rank": 1, "master_addr": "a"},
        "JOB_COMPLETION_INDEX says that this is node 2.*if JOB_COMPLETION_INDEX counts something else, unset it",
    ),
    "an odd index": ({**POD, "JOB_COMPLETION_INDEX": "-1"}, {"nodes": 4}, "JOB_COMPLETION_INDEX='-1' is not a number"),
    "a pod without an address": (POD, {"nodes": 4}, "a pod of Kubernetes, one of 4, but not where the first"),
    "mpirun without an address": ({"PMI_RANK": "1", "PMI_SIZE": "2"}, {}, "does not say where the first"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_contradictory_topology_refused_in_one_line(case):
    """Contradictions between flags and environment are refused in one line, with a fix."""
    environ, request, says = REFUSED[case]
    with pytest.raises(UsageError, match=says) as refused:
        place(environ, **request)
    assert "\n" not in str(refused.value)
    assert refused.value.fix


def test_rank_of_only_process_is_no_rank():
    """As images of containers set it, in a pod of Kubernetes or elsewhere."""
    alone = {"RANK": "0", "WORLD_SIZE": "1"}
    assert at(alone) == at({**alone, "KUBERNETES_SERVICE_HOST": "10.96.0.1"}) == (0, 1, "127.0.0.1", None)


def test_rank_variable_counting_nodes_needs_node_flags():
    """Where RANK counts nodes, --nodes and --node-rank say so."""
    assert at({"RANK": "1", "WORLD_SIZE": "2"}, nodes=2, node_rank=1, master_addr="a") == (1, 2, "a", 29500)
