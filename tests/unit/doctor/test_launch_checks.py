"""Ports, names, interfaces, ranks and left-over variables."""

import threading
from pathlib import Path

import pytest

from dsrun.doctor import machine_facts as machine
from dsrun.doctor.machine_facts import DoctorTarget
from tests.unit.doctor.recorded import A100, FINE, RecordedNetwork, codes, driver, found_by, levels, recorded

SEVERAL = DoctorTarget(nodes=2)
IN_JOB = {"SLURM_JOB_ID": "7"}


@pytest.mark.parametrize(
    ("taken", "environ", "target", "expected"),
    [
        ((), {}, DoctorTarget(), []),
        ((29500,), {}, DoctorTarget(), ["port_default_taken"]),
        ((29500,), {"MASTER_PORT": "29600"}, DoctorTarget(), []),
        ((29600,), {"MASTER_PORT": "29600"}, DoctorTarget(), ["port_taken"]),
        ((29600,), {"MASTER_PORT": "29600"}, DoctorTarget(master_port=29700), []),
        ((29700,), {}, DoctorTarget(master_port=29700), ["port_taken"]),
        ((29701,), {}, DoctorTarget(master_port=29700), []),
        ((29701,), {}, DoctorTarget(master_port=29700, nodes=2), ["port_next_taken"]),
        ((), {"MASTER_PORT": "29500x"}, DoctorTarget(), ["port_invalid"]),
        ((), {"MASTER_PORT": "99999"}, DoctorTarget(), ["port_invalid"]),
    ],
)
def test_rendezvous_port(tmp_path: Path, taken, environ, target, expected) -> None:
    found = found_by("port", recorded(tmp_path, environ=environ, network=RecordedNetwork(taken=taken)), target)
    assert codes(found) == expected
    assert expected or levels(found) == FINE


def test_taken_port_names_holder_and_next_free_one(tmp_path: Path) -> None:
    here = recorded(tmp_path, network=RecordedNetwork(taken=[29700]))
    (found,) = found_by("port", here, DoctorTarget(master_port=29700))
    assert found.message == "--master-port: port 29700 is taken by python (process 7); the next free one is 29701"


@pytest.mark.parametrize(
    ("names", "environ", "target", "expected"),
    [
        ({"node1": ["10.0.0.1"]}, {}, DoctorTarget(), []),
        ({"node1": ["127.0.1.1"]}, {}, DoctorTarget(), []),
        ({"node1": ["127.0.1.1"]}, IN_JOB, SEVERAL, ["names_own_loopback"]),
        ({"node1": ["127.0.1.1"]}, {}, SEVERAL, []),  # on the login node, where it does not run
        (
            {"node1": ["127.0.1.1"], "node2": ["10.0.0.2"]},
            {"MASTER_ADDR": "node2"},
            DoctorTarget(),
            ["names_own_loopback"],
        ),
        ({}, {}, DoctorTarget(), ["names_own_unknown"]),
        ({"node1": None}, {}, DoctorTarget(), ["names_own_unknown"]),
        ({"node1": ["10.0.0.1"], "node2": None}, {"MASTER_ADDR": "node2"}, DoctorTarget(), ["names_master_addr"]),
        ({"node1": ["10.0.0.1"]}, {"MASTER_ADDR": "node9"}, DoctorTarget(), ["names_master_addr"]),
        ({"node1": ["10.0.0.1"]}, {}, DoctorTarget(master_addr="node9"), ["names_master_addr"]),
        ({"node1": ["10.0.0.1"], "node2": ["10.0.0.2"]}, {"MASTER_ADDR": "node2"}, DoctorTarget(), []),
    ],
)
def test_names_and_addresses(tmp_path: Path, names, environ, target, expected) -> None:
    found = found_by("names", recorded(tmp_path, environ=environ, network=RecordedNetwork(names=names)), target)
    assert codes(found) == expected
    assert expected or levels(found) == FINE


def test_network_that_does_not_answer_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resolver without a network takes tens of seconds; the check must not."""
    for_ever = threading.Event()
    monkeypatch.setattr(machine, "RESOLVE_S", 0.01)
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: for_ever.wait() and [])
    assert machine.HostNetwork().resolve("node9") is None
    assert not machine.HostNetwork().reachable("node9", 443, 0.01)
    for_ever.set()


@pytest.mark.parametrize("host", ["", "..", "x" * 300])
def test_name_that_cannot_be_one(host) -> None:
    assert not machine.HostNetwork().resolve(host)


LO = {"lo": ["127.0.0.1"]}
ETH = LO | {"eth0": ["10.0.0.1"]}


@pytest.mark.parametrize(
    ("there", "environ", "target", "expected"),
    [
        (ETH, {}, SEVERAL, []),
        (ETH | {"docker0": ["172.17.0.1"]}, IN_JOB, SEVERAL, []),
        (ETH | {"virbr0": ["192.168.122.1"]}, IN_JOB, SEVERAL, ["interfaces_several"]),
        (ETH | {"eth1": ["10.1.0.1"]}, IN_JOB, SEVERAL, ["interfaces_several"]),
        (ETH | {"eth1": ["10.1.0.1"]}, {}, SEVERAL, []),
        (ETH | {"eth1": ["fe80::1"]}, IN_JOB, SEVERAL, []),
        (ETH | {"eth1": ["10.1.0.1"]}, {}, DoctorTarget(), []),
        (
            ETH | {"eth1": ["10.1.0.1"]},
            {"SLURM_JOB_ID": "7", "SLURM_NNODES": "4"},
            DoctorTarget(),
            ["interfaces_several"],
        ),
        (ETH | {"eth1": ["10.1.0.1"], "ib0": ["10.2.0.1"]}, IN_JOB, SEVERAL, []),
        (ETH | {"eth1": ["10.1.0.1"]}, IN_JOB | {"NCCL_SOCKET_IFNAME": "eth1"}, SEVERAL, []),
        (LO, IN_JOB, SEVERAL, ["interfaces_none"]),
        (ETH, {"NCCL_SOCKET_IFNAME": "eno1"}, DoctorTarget(), ["interfaces_named"]),
        (ETH, {"NCCL_SOCKET_IFNAME": "eth"}, DoctorTarget(), []),
        (ETH, {"NCCL_SOCKET_IFNAME": "=eth"}, DoctorTarget(), ["interfaces_named"]),
        (ETH, {"NCCL_SOCKET_IFNAME": "=eth0"}, DoctorTarget(), []),
        (ETH, {"NCCL_SOCKET_IFNAME": "^docker0,lo"}, DoctorTarget(), []),
        (ETH, {"NCCL_SOCKET_IFNAME": "^eth"}, DoctorTarget(), ["interfaces_named"]),
        (ETH, {"GLOO_SOCKET_IFNAME": "eno1"}, DoctorTarget(), ["interfaces_named"]),
        (ETH, {"GLOO_SOCKET_IFNAME": "eth0"}, DoctorTarget(), []),
    ],
)
def test_network_interfaces(tmp_path: Path, there, environ, target, expected) -> None:
    found = found_by(
        "interfaces", recorded(tmp_path, environ=environ, network=RecordedNetwork(interfaces=there)), target
    )
    assert codes(found) == expected
    assert expected or levels(found) == FINE


@pytest.mark.parametrize(
    ("gpus", "visible", "nproc", "expected"),
    [
        (4, None, None, []),
        (4, "0,1", 2, []),
        (4, "0,1", 4, ["ranks"]),
        (4, "", None, ["ranks_hidden"]),
        (4, "-1", None, ["ranks_hidden"]),
        (4, "2,3,4,5", None, ["ranks_visible"]),
        (4, "0,0", None, ["ranks_visible"]),
        (0, "", 2, []),
        (0, None, 5000, ["ranks"]),
    ],
)
def test_ranks_against_visible_gpus(tmp_path: Path, gpus, visible, nproc, expected) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    here = recorded(tmp_path, environ=environ, found=driver(*[A100] * gpus) if gpus else None)
    found = found_by("ranks", here, DoctorTarget(nproc=nproc))
    assert codes(found) == expected
    assert expected or levels(found) == FINE


def test_ranks_of_a_job_for_slurm_are_not_those_of_the_login_node(tmp_path: Path) -> None:
    assert found_by("ranks", recorded(tmp_path), DoctorTarget(nproc=8, nodes=4)) == []


WORKER = {
    "RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "8",
    "MASTER_ADDR": "n",
    "MASTER_PORT": "1",
}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, []),
        (WORKER, ["variables_worker"]),
        ({"RANK": "0"}, ["variables_worker"]),
        ({"LOCAL_RANK": "0"}, ["variables_worker"]),
        ({"WORLD_SIZE": "8", "MASTER_ADDR": "n"}, []),
        # A pod of a PyTorchJob, which `dsrun launch` recognises.
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "n", "KUBERNETES_SERVICE_HOST": "10.96.0.1"}, []),
        ({"ACCELERATE_USE_CPU": "true"}, ["variables_accelerate"]),
        ({"CUDA_LAUNCH_BLOCKING": "1", "NCCL_DEBUG": "trace"}, ["variables_slow", "variables_slow"]),
        ({"CUDA_LAUNCH_BLOCKING": "0", "NCCL_DEBUG": "INFO"}, []),
        ({"DS_ACCELERATOR": "cpu"}, ["variables_ds_accelerator"]),
    ],
)
def test_left_over_variables(tmp_path: Path, environ, expected) -> None:
    found = found_by("variables", recorded(tmp_path, environ=environ, found=driver(A100)))
    assert codes(found) == expected
    assert expected or levels(found) == FINE


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({"squeue": "RUNNING\n"}, []),
        ({"squeue": ""}, ["variables_slurm"]),
        ({"squeue": "TIMEOUT\n"}, ["variables_slurm"]),
        ({}, []),
    ],
)
def test_slurm_variables_of_an_allocation_that_has_ended(tmp_path: Path, answers, expected) -> None:
    """Where SLURM's programs are missing or do not answer, nothing is known."""
    found = found_by("variables", recorded(tmp_path, environ={"SLURM_JOB_ID": "71233"}, programs=answers))
    assert codes(found) == expected
