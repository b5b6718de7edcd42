"""Hostfiles in DeepSpeed's format, and what --include and --exclude make of them."""

from __future__ import annotations

import pytest

from dsrun.errors import UsageError
from dsrun.launch.detection.hostfile import SshHost, excluded, included, parse_hostfile

TEXT = """\
# the cluster
gpu1 slots=4

gpu2 slots=2   # the old one
me@10.0.0.3 slots = 1
"""


@pytest.fixture
def hosts():
    return parse_hostfile(TEXT, "hosts")


def named(hosts):
    return {host.name: host.slots for host in hosts}


def test_hostfile_slots_comments_and_blank_lines(hosts):
    assert named(hosts) == {"gpu1": (0, 1, 2, 3), "gpu2": (0, 1), "me@10.0.0.3": (0,)}
    assert not any(host.chosen for host in hosts)


def test_hostfile_address_is_name_without_user(hosts):
    """The address of a machine is its name without the user."""
    assert [host.address for host in hosts] == ["gpu1", "gpu2", "10.0.0.3"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gpu1 slots=4\ngpu2 slots=4\ngpu1 slots=2", "hosts:3: gpu1 is already in line 1"),
        ("# x\ngpu1", r"hosts:2: gpu1 has no slots.*gpu1 slots=8"),
        ("gpu1 slots=", "hosts:1: 'gpu1 slots=' is not a machine with its slots"),
        ("gpu1 slots=0", "hosts:1: slots=0 is not a number of GPUs"),
        ("gpu1 slots=-1", "slots=-1"),
        (f"gpu1 slots={'9' * 5000}", "slots=9+… is not a number of GPUs"),
        ("gpu1 slots=four", "slots=four"),
        ("gpu1 slots=8 max_slots=8", "not a machine with its slots"),
        ("-oProxyCommand=x slots=1", "'-oProxyCommand=x' is not a machine name"),
        ("gpu;reboot slots=1", "not a machine name"),
        ("", "hosts: names no machine"),
        ("# only a remark\n", "hosts: names no machine"),
    ],
)
def test_hostfile_error_names_line(text, says):
    """An error in a hostfile names the line."""
    with pytest.raises(UsageError, match=says):
        parse_hostfile(text, "hosts")


def test_include_keeps_named_hosts_and_slots(hosts):
    """--include keeps what it names."""
    assert included(hosts, "gpu1:2,0@gpu2") == (
        SshHost(name="gpu1", slots=(0, 2), chosen=True),
        SshHost(name="gpu2", slots=(0, 1)),
    )


def test_include_and_exclude_match_host_without_user(hosts):
    """A machine is chosen by its name without the user."""
    assert named(included(hosts, "10.0.0.3")) == {"me@10.0.0.3": (0,)}
    assert "me@10.0.0.3" not in named(excluded(hosts, "10.0.0.3"))


def test_exclude_keeps_other_hosts_and_slots(hosts):
    """--exclude keeps the rest."""
    assert excluded(hosts, "gpu1:0@gpu2") == (
        SshHost(name="gpu1", slots=(1, 2, 3), chosen=True),
        SshHost(name="me@10.0.0.3", slots=(0,)),
    )


def test_exclude_drops_host_without_slots_left(hosts):
    """A machine without any slot left is left out."""
    assert "gpu2" not in named(excluded(hosts, "gpu2:0,1"))


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        ("gpu3", r"no machine 'gpu3' \(did you mean gpu\d\?\)"),
        ("somewhere", "it has gpu1, gpu2"),
        ("gpu1:7", r"gpu1 has no slot '7' \(it has 0 to 3\)"),
        ("gpu1:", "gpu1 has no slot ''"),
        ("gpu1:a", "no slot 'a'"),
        (f"gpu1:{'9' * 5000}", "no slot '9+…'"),
        ("gpu1:0@gpu1:1", "gpu1 is given twice"),
    ],
)
def test_include_unknown_host_or_slot_refused(hosts, choice, says):
    """Choices that do not exist are refused."""
    with pytest.raises(UsageError, match=f"--include: .*{says}"):
        included(hosts, choice)


def test_exclude_all_hosts_refused():
    """Excluding all machines is refused."""
    with pytest.raises(UsageError, match="--exclude gpu1 leaves no machine"):
        excluded(parse_hostfile("gpu1 slots=1", "hosts"), "gpu1")
