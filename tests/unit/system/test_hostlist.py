"""Lists of machines as SLURM and hostfiles write them."""

from __future__ import annotations

import pytest

from dsrun.errors import UsageError
from dsrun.system.hostlist import expand_hosts, read_hostfile
from dsrun.wheel.verify.remote import RemoteNode, way_here


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu01", ["gpu01"]),
        ("gpu01,login", ["gpu01", "login"]),
        ("gpu[08-10]", ["gpu08", "gpu09", "gpu10"]),
        ("gpu[1,3-4]-ib,x", ["gpu1-ib", "gpu3-ib", "gpu4-ib", "x"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("a, a b", ["a", "b"]),
        ("user@10.0.0.1", ["user@10.0.0.1"]),
    ],
)
def test_expand_slurm_hostlist(text, names):
    assert expand_hosts(text) == tuple(names)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "gpu[1-",
        "gpu1]",
        "gpu[]",
        "gpu[a-b]",
        "gpu[3-1]",
        "gpu[1-999999999]",
        f"gpu[{'9' * 5000}]",
        "-oProxyCommand=x",
        "a;b",
        "n[1-999]m[1-999]",
    ],
)
def test_invalid_hostlist_rejected(text):
    with pytest.raises(UsageError):
        expand_hosts(text)


def test_read_hostfile(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("# cluster\nworker-1 slots=4\n\nworker-2 slots=4  # spare\nworker-1 slots=4\n")
    assert read_hostfile(file) == ("worker-1", "worker-2")


@pytest.mark.parametrize("content", ["", "# nothing\n", "-oProxyCommand=x slots=4\n", "a$(b) slots=1\n"])
def test_invalid_hostfile_rejected(tmp_path, content):
    file = tmp_path / "hosts"
    file.write_text(content)
    with pytest.raises(UsageError):
        read_hostfile(file)


def test_ssh_command_quoted_as_one_line():
    """ssh is given one line that the login shell takes apart again."""
    argv = RemoteNode("n1", "ssh").argv(["sh", "-c", 'cat > "$1"', "sh", "it's here"])
    assert argv[-2] == "n1"
    assert argv[-1] == """sh -c 'cat > "$1"' sh 'it'"'"'s here'"""


def test_srun_command_as_separate_arguments():
    argv = RemoteNode("n1", "srun").argv(["echo", "a b"])
    assert argv[-3:] == ["--nodelist=n1", "echo", "a b"]


def test_srun_inside_allocation_ssh_elsewhere(monkeypatch, tmp_path):
    (tmp_path / "srun").write_text("#!/bin/sh\n")
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert way_here({"SLURM_JOB_ID": "3"}) == "srun"
    assert way_here({}) == "ssh"
