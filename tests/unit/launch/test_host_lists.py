"""Lists of machines as schedulers and platforms give them, and jobs in which dsrun starts itself on all of them."""

from __future__ import annotations

import re

import pytest

from dsrun.errors import UsageError
from dsrun.launch.context import LaunchRequest, LocalLauncher, SshLauncher
from dsrun.launch.detection.detect import detect
from dsrun.launch.detection.started import job_port
from dsrun.launch.detection.table import HostSource, machines
from dsrun.system.env import FIRST_PORT, PORTS


@pytest.fixture
def pbs(tmp_path):
    """A PBS job of two machines with two slots each; PBS names each slot's machine in a line of its own."""
    (tmp_path / "nodes").write_text("gpu1.site\ngpu1.site\ngpu2.site\ngpu2.site\n")
    return {"PBS_JOBID": "42.server", "PBS_NODEFILE": str(tmp_path / "nodes")}


def place(environ, **request):
    return detect(LaunchRequest(**request), environ)


def test_pbs_job_starts_on_all_machines_of_its_file(pbs):
    """Over ssh, the first machine first, at a port of the job's own; or on the first few of them."""
    found = SshLauncher("PBS job 42.server", ("gpu1.site", "gpu2.site"), job_port("42.server"))
    assert place(pbs) == place(pbs, nodes=2) == found
    assert place(pbs, master_port=99).port == place({**pbs, "MASTER_PORT": "99"}).port == 99
    assert place(pbs, nodes=1) == LocalLauncher(how="one machine, PBS job 42.server")
    with pytest.raises(UsageError, match=r"--nodes 3, but PBS job 42.server has 2"):
        place(pbs, nodes=3)


def test_pbs_job_yields_to_node_rank_and_hostfile(pbs):
    """Who says which machine this is, or which there are, means it."""
    assert place(pbs, nodes=2, node_rank=1, master_addr="gpu1").own_terminal
    assert place(pbs, hostfile=True) == SshLauncher()


def test_lsf_job_starts_on_all_machines(tmp_path):
    """By the variable with numbers of slots, else by the file; a job of one host is one machine."""
    job = {"LSB_JOBID": "8"}
    (tmp_path / "hosts").write_text("gpu1\ngpu1\ngpu2\n")
    assert place({**job, "LSB_MCPU_HOSTS": "gpu1 8 gpu2 8"}).hosts == ("gpu1", "gpu2")
    assert place({**job, "LSB_DJOB_HOSTFILE": str(tmp_path / "hosts")}).hosts == ("gpu1", "gpu2")
    assert place({**job, "LSB_MCPU_HOSTS": "gpu1 8"}).how == "one machine, LSF job 8"


def test_ports_of_jobs_differ_and_leave_room_for_coordinator():
    """Jobs may share a machine; each takes two ports."""
    ports = [job_port(f"{number}.server") for number in range(50)]
    assert len(set(ports)) > 45
    assert all(port % 2 == FIRST_PORT % 2 and FIRST_PORT <= port < FIRST_PORT + PORTS for port in ports)


@pytest.mark.parametrize("content", ["", "\n\n", "-oProxyCommand=reboot\n", "a;b\n", "\udcff"])
def test_odd_node_file_is_one_line(tmp_path, content):
    """What ssh would take for an option, or what is no list, goes no further."""
    (tmp_path / "nodes").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(UsageError, match="PBS_NODEFILE") as refused:
        place({"PBS_JOBID": "1", "PBS_NODEFILE": str(tmp_path / "nodes")})
    assert "\n" not in str(refused.value)


def test_unreadable_node_file_is_one_line(tmp_path):
    """As on another machine of the job than the first."""
    with pytest.raises(UsageError, match=r"nodes cannot be read: No such file.*first machine of the job"):
        place({"PBS_JOBID": "1", "PBS_NODEFILE": str(tmp_path / "nodes")})


def test_one_machine_needs_no_node_file(tmp_path):
    """As in a terminal that has outlived its job; the error says what to unset."""
    stale = {"PBS_JOBID": "1", "PBS_NODEFILE": str(tmp_path / "nodes")}
    with pytest.raises(UsageError, match=r"if the job is over, unset PBS_NODEFILE"):
        place(stale)
    assert place(stale, nodes=1) == LocalLauncher(how="one machine, PBS job 1")


@pytest.mark.parametrize(
    "odd",
    [
        {"CLUSTER_SPEC": "x"},
        {"SM_HOSTS": "[]", "SM_CURRENT_HOST": "a"},
        {"VC_WORKER_HOSTS": ",", "VC_TASK_INDEX": "0"},
        {"PET_NODE_RANK": "1", "PET_NNODES": "1:4", "KUBERNETES_SERVICE_HOST": "10.96.0.1"},
    ],
    ids=str,
)
def test_nodes_1_reads_no_list_of_platform(odd):
    """The list matters to several machines only; what the error says to unset makes it go away."""
    assert place(odd, nodes=1).nodes == 1
    with pytest.raises(UsageError) as refused:
        place(odd)
    named = re.search(r"unset (\w+)", refused.value.fix)
    assert named
    rest = {name: value for name, value in odd.items() if name != named[1]}
    assert place(rest) == LocalLauncher(how="one machine")


def test_pbsdsh_only_in_a_job_of_pbs():
    """The number of a machine without a job is a variable that somebody has kept."""
    assert place({"PBS_NODENUM": "1"}) == LocalLauncher(how="one machine")


def test_command_is_asked_for_list(tmp_path, monkeypatch):
    """Its words are the machines; where it fails or is not there, --master-addr is the way."""
    source = HostSource("command", "flux hostlist --expand local")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    flux = tmp_path / "flux"
    flux.write_text('#!/bin/sh\n[ "$*" = "hostlist --expand local" ] && echo gpu1 gpu2\n')
    flux.chmod(0o755)
    assert machines(source, {}) == ("gpu1", "gpu2")
    flux.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(UsageError, match=r"flux hostlist --expand local.*exit status 3.*--master-addr"):
        machines(source, {})
    with pytest.raises(UsageError, match=r"no-such-flux.*: not found \(--master-addr"):
        machines(HostSource("command", "no-such-flux hostlist"), {})
