"""Launchers and platforms that start the command on each machine, by the variables that they set there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dsrun.errors import UsageError
from dsrun.launch.context import LaunchRequest, LocalLauncher
from dsrun.launch.detection.detect import detect, started_alone
from dsrun.launch.detection.started import job_port
from dsrun.launch.detection.table import launchers, schedulers

DOCS = Path(__file__).parents[3] / "docs" / "launch.md"
# Recorded from mpirun -npernode 1 of Open MPI 4.1.4; version 5 documents the same names (docs.open-mpi.org).
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    "OMPI_COMM_WORLD_NODE_RANK": "0",
    "PMIX_RANK": "1",
}
# Recorded from mpirun -ppn 1 of MPICH 4.0.2, and the same from that of Intel MPI 2021.19.
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_FD": "6", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}
# job-environment-variables.rst of flux-core.
FLUX = {
    "FLUX_JOB_ID": "ƒ2oSkXPfd",
    "FLUX_JOB_SIZE": "3",
    "FLUX_JOB_NNODES": "3",
    "FLUX_TASK_RANK": "2",
    "FLUX_TASK_LOCAL_ID": "0",
}
# Of IBM's Job Step Manager, as MPI's test programs read them (openpmix/prrte-tests).
JSRUN = {"JSM_NAMESPACE_RANK": "1", "JSM_NAMESPACE_SIZE": "2", "JSM_NAMESPACE_LOCAL_SIZE": "1"}
# ENVIRONMENT_VARIABLES.md of aws/sagemaker-training-toolkit.
SAGEMAKER = {"SM_HOSTS": '["algo-1","algo-2"]', "SM_CURRENT_HOST": "algo-2"}
# Of Vertex AI's documentation, "Distributed training": its prebuilt containers count by torchrun's names as well.
VERTEX = {
    "CLUSTER_SPEC": '{"cluster": {"workerpool0": ["cmle-training-workerpool0-ab-0:2222"], '
    '"workerpool1": ["cmle-training-workerpool1-ab-0:2222", "cmle-training-workerpool1-ab-1:2222"]}, '
    '"environment": "cloud", "task": {"type": "workerpool1", "index": 1}}',
    "RANK": "2",
    "WORLD_SIZE": "3",
}
# https://volcengine.com/docs/6459/75329
MLP = {"MLP_ROLE": "WORKER", "MLP_ROLE_INDEX": "1", "MLP_WORKER_NUM": "2", "MLP_WORKER_0_HOST": "10.128.97.74"}
# https://help.aliyun.com/zh/pai/user-guide/general-environment-variables
PAI_DLC = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "dlc1-master-0", "MASTER_PORT": "23456"}
KUBERNETES = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
# plugins/env and plugins/svc of volcano-sh/volcano; ModelArts runs on it.
VOLCANO = {
    **KUBERNETES,
    "VC_TASK_INDEX": "1",
    "VC_WORKER_HOSTS": "job-worker-0.job,job-worker-1.job",
    "VC_WORKER_NUM": "2",
}
# process_count_per_instance: 1, of Microsoft's guide to distributed training.
AZURE = {
    "AZUREML_RUN_ID": "run",
    "NODE_RANK": "1",
    "RANK": "1",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.4",
    "MASTER_PORT": "6105",
}
# torch.go of kubeflow/trainer.
TRAINJOB = {
    **KUBERNETES,
    "JOB_COMPLETION_INDEX": "1",
    "PET_NODE_RANK": "1",
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "8",
    "PET_MASTER_ADDR": "job-node-0-0.job",
    "PET_MASTER_PORT": "29400",
}
PBSDSH = {"PBS_JOBID": "7.server", "PBS_NODENUM": "1", "PBS_TASKNUM": "2"}
PBS_LIST = {"PBS_JOBID": "7.server", "PBS_NODEFILE": "/var/spool/pbs/aux/7.server"}
LSF = {"LSB_JOBID": "8", "LSB_MCPU_HOSTS": "gpu1 8 gpu2 8"}


def place(environ, text="", **request):
    """`text` is what the file or the command of a list says."""
    return detect(LaunchRequest(**request), environ, lambda source, env: text or env[source.of])


def at(environ, text="", **request):
    """(node, nodes, host, port)"""
    found = place(environ, text, **request)
    assert isinstance(found, LocalLauncher)
    return found.node, found.nodes, found.host, found.port


RECOGNISED = {
    "mpirun": ({**OPEN_MPI, "MASTER_ADDR": "gpu1"}, (1, 2, "gpu1", 29500), "under mpirun"),
    "mpirun of MPICH": ({**HYDRA, "MASTER_ADDR": "gpu1"}, (1, 2, "gpu1", 29500), "under mpirun"),
    "mpirun on Azure": ({**OPEN_MPI, "AZ_BATCH_MASTER_NODE": "10.0.0.4:6000"}, (1, 2, "10.0.0.4", 29500), "mpirun"),
    "jsrun": ({**JSRUN, "MASTER_ADDR": "h01"}, (1, 2, "h01", 29500), "under jsrun"),
    "SageMaker": (SAGEMAKER, (1, 2, "algo-1", 29500), "an instance of SageMaker"),
    "Vertex AI": (VERTEX, (2, 3, "cmle-training-workerpool0-ab-0", 29500), "a replica of Vertex AI"),
    "MLP": ({**MLP, "MLP_WORKER_0_PORT": "2222"}, (1, 2, "10.128.97.74", 2222), "Volcengine"),
    "PAI-DLC": ({**PAI_DLC, "NPROC_PER_NODE": "8"}, (1, 2, "dlc1-master-0", 23456), "PAI-DLC"),
    "PyTorchJob": ({**PAI_DLC, **KUBERNETES}, (1, 2, "dlc1-master-0", 23456), "a pod of Kubernetes"),
    "TrainJob": (TRAINJOB, (1, 2, "job-node-0-0.job", 29400), "a pod of Kubeflow"),
    "Volcano": (VOLCANO, (1, 2, "job-worker-0.job", 29500), "a pod of Volcano"),
    "Azure ML": (AZURE, (1, 2, "10.0.0.4", 6105), "a node of Azure ML"),
}


@pytest.mark.parametrize("case", RECOGNISED)
def test_launcher_recognised_by_its_variables(case):
    """Node, nodes, address and port follow from what the launcher sets; flags for address and port take precedence."""
    environ, expected, how = RECOGNISED[case]
    assert at(environ) == expected
    assert how in place(environ).how
    assert at(environ, master_addr="ib1", master_port=99) == (*expected[:2], "ib1", 99)
    assert at(environ, nodes=expected[1]) == expected


def test_lost_node_comes_back_only_where_platform_restarts_it():
    """Pods are started again with their number; mpirun ends the others."""
    assert [place(each).returns for each in (TRAINJOB, {**PAI_DLC, **KUBERNETES})] == [True, True]
    assert [place(each).returns for each in ({**OPEN_MPI, "MASTER_ADDR": "a"}, SAGEMAKER)] == [False, False]


def test_flux_is_asked_for_hosts_of_its_job():
    """Flux has no variable for the hosts; all tasks derive one port from the job's id."""
    asked = []

    def flux(source, _):
        asked.append(source.of)
        return "corona1 corona2 corona3\n"

    found = detect(LaunchRequest(), FLUX, flux)
    assert (found.node, found.nodes, found.host, found.port) == (2, 3, "corona1", job_port(FLUX["FLUX_JOB_ID"]))
    assert asked == ["flux hostlist --expand local"]
    assert detect(LaunchRequest(master_addr="ib1"), FLUX, flux).host == "ib1"
    assert len(asked) == 1


@pytest.mark.parametrize("mpi", [OPEN_MPI, HYDRA])
def test_mpirun_takes_first_host_of_job(mpi):
    """In a job of PBS, LSF or SLURM its list says where node 0 is, and the port is the job's own."""
    assert at({**mpi, **PBS_LIST}, text="gpu1\ngpu1\ngpu2\n") == (1, 2, "gpu1", job_port("7.server"))
    assert at({**mpi, **LSF}) == (1, 2, "gpu1", job_port("8"))
    assert at({**mpi, "SLURM_JOB_ID": "9", "SLURM_JOB_NODELIST": "gpu[1-2]"}) == (1, 2, "gpu1", 29500)
    assert place({**mpi, **LSF}).listed
    # One port on all nodes, though only the first one may have the job's variables.
    assert at({**mpi, **LSF}, master_addr="gpu1") == at(mpi, master_addr="gpu1") == (1, 2, "gpu1", 29500)


def test_pbsdsh_needs_nodes_and_master_addr():
    """The list is on the first machine only; --nodes in the job's script means the first machines of the list."""
    assert at(PBSDSH, nodes=2, master_addr="gpu1") == (1, 2, "gpu1", 29500)
    assert at(PBSDSH, nodes=1) == (0, 1, "127.0.0.1", None)
    first = {**PBSDSH, **PBS_LIST, "PBS_NODENUM": "0"}
    assert at(first, "gpu1\ngpu2\n", nodes=2, master_addr="gpu1") == (0, 2, "gpu1", 29500)
    assert place(first, "gpu1\ngpu2\n", nodes=2).hosts == ("gpu1", "gpu2")


def test_rank_variable_yields_to_node_rank():
    """RANK may count GPUs: --nodes and --node-rank say so, and LOCAL_RANK tells of a worker."""
    assert at({**PAI_DLC, **KUBERNETES}, nodes=4, node_rank=3) == (3, 4, "dlc1-master-0", 23456)
    with pytest.raises(UsageError, match="worker 1 of a run already"):
        place({**PAI_DLC, **KUBERNETES, "LOCAL_RANK": "1"})
    with pytest.raises(UsageError, match="worker 1 of a run already"):
        place({**AZURE, "GROUP_RANK": "0"})


def test_one_machine_where_platform_has_one():
    """One host in the list, or --nodes 1: any free port of this machine."""
    for environ in (
        {**SAGEMAKER, "SM_HOSTS": '["algo-2"]'},
        {**PAI_DLC, **KUBERNETES, "RANK": "0", "WORLD_SIZE": "1"},
        {**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
    ):
        assert at(environ) == (0, 1, "127.0.0.1", None)
    assert at(SAGEMAKER, nodes=1) == at(TRAINJOB, nodes=1) == (0, 1, "127.0.0.1", None)


def test_ranks_variables_of_several_volcano_tasks_not_guessed():
    """With a master task beside the workers, each counts from 0."""
    environ = {**VOLCANO, "VC_MASTER_HOSTS": "job-master-0.job"}
    assert at(environ) == (0, 1, "127.0.0.1", None)


REFUSED = {
    "processes per GPU": ({**HYDRA, "MPI_LOCALNRANKS": "8"}, {}, r"8 processes on this machine.*mpirun -ppn 1"),
    "tasks per GPU": ({**FLUX, "FLUX_JOB_SIZE": "24"}, {}, r"24 processes on 3 machines.*--tasks-per-node=1"),
    "other nodes": (OPEN_MPI, {"nodes": 3}, "--nodes 3, but mpirun has started 2 processes"),
    "one of several": (OPEN_MPI, {"nodes": 1}, "--nodes 1, but mpirun has started 2 processes"),
    "other hosts": (SAGEMAKER, {"nodes": 3}, "--nodes 3, but this is an instance of SageMaker, one of 2"),
    "other rank": (SAGEMAKER, {"nodes": 2, "node_rank": 0}, "--node-rank 0, but SM_CURRENT_HOST says .* node 1"),
    "mpirun's other rank": (
        {**OPEN_MPI, "MASTER_ADDR": "a"},
        {"nodes": 2, "node_rank": 0},
        "--node-rank 0, but OMPI_COMM_WORLD_RANK says",
    ),
    "hostfile": (OPEN_MPI, {"hostfile": True}, "--hostfile under mpirun, which has started"),
    "no address": (JSRUN, {}, "under jsrun on 2 machines, which does not say where the first"),
    "rank too large": ({**TRAINJOB, "PET_NODE_RANK": "2"}, {}, "PET_NODE_RANK=2, but the 2 nodes are 0 to 1"),
    "elastic": ({**TRAINJOB, "PET_NNODES": "1:4"}, {}, "PET_NNODES='1:4' is not a number"),
    "odd port": ({**MLP, "MLP_WORKER_0_PORT": "70000"}, {}, "MLP_WORKER_0_PORT=70000 is not a valid port"),
    "no node": ({**TRAINJOB, "PET_NNODES": "0"}, {}, "PET_NNODES=0 is not a number of nodes"),
    "stranger": ({**SAGEMAKER, "SM_CURRENT_HOST": "algo-9"}, {}, "SM_CURRENT_HOST='algo-9', but the machines"),
    "pbsdsh": (PBSDSH, {}, r"pbsdsh has started this on machine 1 of its job.*--nodes N --master-addr"),
    "a parameter server": (
        {"CLUSTER_SPEC": VERTEX["CLUSTER_SPEC"].replace('"type": "workerpool1"', '"type": "workerpool2"')},
        {},
        "CLUSTER_SPEC does not say which of the 3",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_contradiction_with_launcher_refused_in_one_line(case):
    """What the flags and the launcher's variables say differently is refused, with a fix."""
    environ, request, says = REFUSED[case]
    with pytest.raises(UsageError, match=says) as refused:
        place(environ, **request)
    assert "\n" not in str(refused.value)
    assert refused.value.fix


HOSTILE = (
    "",
    " ",
    "x",
    "-1",
    "1e3",
    "١",
    "[",
    "{}",
    '"abc"',
    "[1, 2]",
    '[["a"]]',
    "a b\tc\n",
    "$(reboot)",
    "-oProxy=x",
    "🦆" * 999,
    "9" * 9999,
)


@pytest.mark.parametrize("case", RECOGNISED)
@pytest.mark.parametrize("value", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_value_is_one_line_or_one_machine(case, value):
    """Whatever one variable holds, the place is a sound one or the error one line."""
    environ = RECOGNISED[case][0]
    for name in environ:
        assert found_or_said({**environ, name: value})


def found_or_said(environ):
    """Whether the place is one that can be, or the error one line."""
    try:
        found = place(environ)
    except UsageError as error:
        return "\n" not in str(error) and len(str(error)) < 500
    return isinstance(found, LocalLauncher) and 0 <= found.node < found.nodes and not re.search(r"^-|\s", found.host)


@pytest.mark.parametrize("case", RECOGNISED)
def test_train_refused_as_one_of_several(case):
    """Each process would train alone, in the same folder; `dsrun launch` is the way."""
    if case == "Azure ML":  # where LOCAL_RANK makes it a worker
        return
    with pytest.raises(UsageError, match="dsrun launch -- dsrun train"):
        started_alone(RECOGNISED[case][0])


def test_train_runs_alone_and_as_worker():
    """In the only pod of a job RANK makes no worker of it; the variables that srun sets for MPI do not matter."""
    alone = {**PAI_DLC, **KUBERNETES, "RANK": "0", "WORLD_SIZE": "1"}
    assert [started_alone(each) for each in (alone, {**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "1"})] == [True, True]
    step = {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    workers = ({}, {**TRAINJOB, "LOCAL_RANK": "0"}, {**AZURE, "LOCAL_RANK": "3"}, {**HYDRA, **step})
    assert not any(started_alone(each) for each in workers)


def test_documentation_names_all_variables():
    """The table of docs/launch.md has each launcher's variables."""
    text = DOCS.read_text(encoding="utf-8")
    named = {name for each in launchers() for name in (each.rank, each.size, each.own, each.local_size) if name}
    named |= {each.hosts.of for each in (*launchers(), *schedulers()) if each.hosts}
    assert sorted(name for name in named if f"`{name}" not in text) == []


@pytest.mark.parametrize(
    ("environ", "chosen"),
    [
        (FLUX | {"FLUX_JOB_ID": "ƒ2"}, True),
        (FLUX | {"MASTER_PORT": "29500"}, False),
        # Two runs that no job tells apart would join each other.
        (OPEN_MPI, False),
        (TRAINJOB, False),
    ],
)
def test_another_port_is_chosen_only_where_a_job_tells_runs_apart(environ, chosen):
    found = detect(LaunchRequest(master_addr="node-0"), environ)
    assert isinstance(found, LocalLauncher)
    assert found.chosen_port == chosen
    last = LocalLauncher(how="", port=65534, chosen_port=True)
    assert last.coordinator_ports == (65535,)
