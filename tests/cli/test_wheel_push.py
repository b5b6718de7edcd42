"""`dsrun wheel push` and `dsrun verify-wheel --on` as a user calls them.

The nodes are stand-ins: an `ssh` on PATH that runs the command in a folder of its own for each node, with a Python
environment of its own. What SLURM does is tried on a real cluster elsewhere.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import signal
import site
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.tiny_wheels import compiled, fake_deepspeed, hashed, make_wheel, needs_gcc

FINE = "int twice(int x) { return 2 * x; }"
# Loading it says so, and takes long.
SLOW = """
#include <stdio.h>
#include <unistd.h>
__attribute__((constructor)) static void start(void) { fclose(fopen("loading", "w")); sleep(100); }
"""
# What a bad connection does to the wheel; everything else passes.
CUT = 'case "$*" in *receive*) head -c 400000 | sh -c "$*"; exit;; esac\n'

pytestmark = needs_gcc


def torch_minor() -> str:
    """Major and minor version of the torch these tests run with."""
    return ".".join(importlib.metadata.version("torch").split(".")[:2])


SSH = """#!/bin/sh
while [ "$1" = -o ]; do shift 2; done
node=$1; shift
cd "{nodes}/$node" 2>/dev/null || {{ echo "ssh: connect to host $node port 22: No route to host" >&2; exit 255; }}
echo "Welcome to $node"
echo "$*" >> "{nodes}.log"
exec sh -c "$*"
"""
SRUN = """#!/bin/sh
while :; do case $1 in --nodelist=*) node=${{1#--nodelist=}}; shift;; --*) shift;; *) break;; esac; done
cd "{nodes}/$node" && exec "$@"
"""
PLACES = ("--python", "./env/bin/python", "--to", "wheels")
SBCAST = """#!/bin/sh
shift
for node in "{nodes}"/*/; do cp "$1" "$node/$2" || exit 1; done
echo broadcast >> "{nodes}.log"
"""


def program(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


@pytest.fixture
def nodes(tmp_path, environ):
    """A folder in which each folder is a node, reached through `ssh`, or `srun` inside a "SLURM allocation"."""
    folder = tmp_path / "nodes"
    tools = tmp_path / "tools"
    program(tools, "ssh", SSH.format(nodes=folder))
    environ["PATH"] = f"{tools}:{environ['PATH']}"
    return folder


def add_node(nodes: Path, name: str, *, usable: bool = True) -> Path:
    """A node with an environment that sees torch and pip of this one, and installs into itself."""
    node = nodes / name
    node.mkdir(parents=True)
    if usable:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(node / "env")], check=True)
        (packages,) = (node / "env/lib").glob("python3*/site-packages")
        (packages / "outer.pth").write_text("\n".join(site.getsitepackages()))
    return node


def installed(node: Path) -> list[str]:
    return sorted(path.name for path in node.glob("env/lib/python3*/site-packages/deepspeed*"))


def push(dsrun, path: Path, *args: str):
    done = dsrun("wheel", "push", str(path), *PLACES, *args)
    assert "Traceback" not in done.stderr
    return done


@pytest.mark.exhaustive
def test_wheel_push_installs_and_smoke_tests_every_node(dsrun, here, nodes):
    path = fake_deepspeed(here, {"tiny": compiled(here / "a", FINE)}, torch_minor())
    pushed = [add_node(nodes, name) for name in ("n1", "n2")]
    done = push(dsrun, path, "--nodes", "n[1-2]")
    assert (done.returncode, done.stderr) == (0, "")
    for node in pushed:
        assert installed(node)[0] == "deepspeed"
        assert [file.name for file in (node / "wheels").iterdir()] == [path.name]
        assert stat.S_IMODE((node / "wheels").stat().st_mode) == 0o700
    rows = done.stdout.splitlines()
    assert rows[0].split() == ["node", "Python", "torch", "driver", "GPU", "result"]
    assert [row.split()[0] for row in rows[1:3]] == ["n1", "n2"]
    assert all(row.endswith("installed, 1 loaded") for row in rows[1:3])
    assert "already there, 1 loaded" in push(dsrun, path, "--nodes", "n1").stdout


@pytest.mark.train
def test_wheel_push_failing_node_does_not_hide_others(dsrun, here, nodes):
    path = fake_deepspeed(here, {"tiny": compiled(here / "a", FINE)}, torch_minor())
    good = add_node(nodes, "n1")
    add_node(nodes, "n2", usable=False)
    (here / "hosts").write_text("# the cluster\nn1 slots=8\nn2 slots=8\n\nn3 slots=8\n")
    done = push(dsrun, path, "--hostfile", "hosts", "--format", "json")
    output = json.loads(done.stdout)
    assert done.returncode == 3
    messages = {each["node"]: [finding["message"] for finding in each["findings"]] for each in output["nodes"]}
    assert messages["n1"] == []
    assert "./env/bin/python" in messages["n2"][0]
    assert "No route to host" in messages["n3"][0]
    assert installed(good)
    assert output["findings"] == []


@pytest.mark.exhaustive
def test_wheel_push_nodes_with_different_torch(dsrun, here, nodes):
    path = fake_deepspeed(here, {"tiny": compiled(here / "a", FINE)}, torch_minor())
    add_node(nodes, "n1")
    other = add_node(nodes, "n2")
    (packages,) = (other / "env/lib").glob("python3*/site-packages")
    (packages / "torch").mkdir()
    (packages / "torch/version.py").write_text(f"__version__ = '{torch_minor()}.99+other'\ncuda = None\n")
    (packages / "torch/__init__.py").write_text("raise ImportError('half a torch')\n")
    done = push(dsrun, path, "--nodes", "n1,n2")
    assert done.returncode == 3
    (differ,) = [line for line in done.stdout.splitlines() if "[nodes_differ]" in line]
    assert differ.startswith("error: torch ")
    assert f"{torch_minor()}.99+other on n2" in differ


def test_wheel_push_incomplete_copy_is_not_installed(dsrun, here, nodes):
    path = make_wheel(here, {"deepspeed/__init__.py": "", "deepspeed/data": os.urandom(1_000_000)}, tag="py3-none-any")
    node = add_node(nodes, "n1")
    program(nodes.parent / "tools", "ssh", SSH.format(nodes=nodes).replace("exec ", CUT + "exec "))
    done = push(dsrun, path, "--nodes", "n1")
    assert done.returncode == 3
    assert "copying to wheels: the copy differs from the wheel that was sent" in done.stdout
    assert installed(node) == []
    assert list((node / "wheels").iterdir()) == []


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_wheel_push_folder_that_others_can_write_is_refused(dsrun, here, nodes, mode):
    path = make_wheel(here, {"deepspeed/__init__.py": ""}, tag="py3-none-any")
    node = add_node(nodes, "n1")
    (node / "wheels").mkdir()
    (node / "wheels").chmod(mode)
    done = push(dsrun, path, "--nodes", "n1")
    assert done.returncode == 3
    assert "wheels can be written by others: chmod go-w" in done.stdout
    assert installed(node) == []
    assert list((node / "wheels").iterdir()) == []


def test_wheel_push_compares_before_it_sends(dsrun, here, nodes):
    path = make_wheel(here, {"deepspeed/__init__.py": ""}, tag="cp39-cp39-linux_x86_64")
    node = add_node(nodes, "n1")
    done = push(dsrun, path, "--nodes", "n1")
    assert done.returncode == 3
    assert "[python_tag]" in done.stdout
    assert not (node / "wheels").exists()
    assert installed(node) == []


def test_wheel_push_sends_nothing_that_is_there_and_repairs(dsrun, here, nodes):
    path = make_wheel(here, {"deepspeed/__init__.py": "", "deepspeed/a.py": "a = 1"}, tag="py3-none-any")
    node = add_node(nodes, "n1")
    words = ("--nodes", "n1")
    assert "installed" in push(dsrun, path, *words).stdout
    (wheel,) = (node / "wheels").iterdir()
    wheel.unlink()
    assert "already there" in push(dsrun, path, *words).stdout
    assert not wheel.exists()
    (module,) = node.glob("env/lib/python3*/site-packages/deepspeed/a.py")
    module.unlink()
    assert "repaired" in push(dsrun, path, *words).stdout
    assert module.read_text() == "a = 1"
    assert "receive" in Path(f"{nodes}.log").read_text().splitlines()[-2]
    assert push(dsrun, path, *words, "--force").stdout.splitlines()[1].endswith("installed")


def test_wheel_push_of_another_package_is_refused(dsrun, here, nodes):
    path = make_wheel(here, {"xformers/__init__.py": ""}, name="xformers", tag="py3-none-any")
    done = push(dsrun, path, "--nodes", "n1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "is not a wheel of DeepSpeed" in done.stderr


@pytest.mark.train
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_wheel_push_ctrl_c_ends_nodes_and_prints_table(here, nodes, environ, signum):
    path = fake_deepspeed(here, {"tiny": compiled(here / "a", SLOW)}, torch_minor())
    node = add_node(nodes, "n1")
    command = [sys.executable, "-m", "dsrun", "wheel", "push", str(path), *PLACES, "--nodes", "n1,n2"]
    process = subprocess.Popen(command, cwd=here, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        while not (node / "loading").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signum)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, err) == (130, b"")
    rows = out.decode().splitlines()
    assert rows[1].startswith("n1")
    assert rows[1].endswith("stopped by Ctrl-C")
    assert "No route to host" in rows[2]
    # The end of stdin is what ends a program on a node; nothing waits for it.
    deadline = time.monotonic() + 30
    while any(lives_in(each, nodes) for each in psutil.process_iter()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def lives_in(process: psutil.Process, folder: Path) -> bool:
    try:
        return folder in Path(process.cwd()).parents
    except psutil.Error:
        return False


@pytest.mark.train
def test_wheel_push_in_allocation_uses_sbcast_and_srun(dsrun, here, nodes, environ):
    path = make_wheel(here, {"deepspeed/__init__.py": ""}, tag="py3-none-any")
    program(nodes.parent / "tools", "srun", SRUN.format(nodes=nodes))
    program(nodes.parent / "tools", "sbcast", SBCAST.format(nodes=nodes))
    environ |= {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}
    pushed = [add_node(nodes, name) for name in ("n1", "n2")]
    done = push(dsrun, path)
    assert done.returncode == 0
    assert Path(f"{nodes}.log").read_text() == "broadcast\n"
    assert all("deepspeed" in installed(node) for node in pushed)


@pytest.mark.train
def test_wheel_push_without_sbcast_sends_copies(dsrun, here, nodes, environ):
    path = make_wheel(here, {"deepspeed/__init__.py": ""}, tag="py3-none-any")
    program(nodes.parent / "tools", "srun", SRUN.format(nodes=nodes))
    program(nodes.parent / "tools", "sbcast", "#!/bin/sh\nexit 1\n")
    environ |= {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}
    pushed = [add_node(nodes, name) for name in ("n1", "n2")]
    assert push(dsrun, path).returncode == 0
    assert all("deepspeed" in installed(node) for node in pushed)


def test_wheel_push_refuses_damaged_wheel(dsrun, here, nodes):
    path = make_wheel(here, {"deepspeed/a.py": "x"}, recorded={"deepspeed/a.py": hashed(b"y")})
    node = add_node(nodes, "n1")
    done = push(dsrun, path, "--nodes", "n1")
    assert done.returncode == 3
    assert not (node / "wheels").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "no nodes: this is not a SLURM allocation"),
        (["--nodes", "n1", "--hostfile", "hosts"], "name the nodes twice"),
        (["--hostfile", "gone"], "gone: cannot be read"),
        (["--nodes", "n[1-"], "a bracket is missing"),
        (["--nodes", "-x"], "'-x' is not a list of nodes"),
    ],
)
def test_wheel_push_node_list_errors(dsrun, here, nodes, args, message):
    (here / "hosts").write_text("n1\n")
    done = push(dsrun, make_wheel(here, {"deepspeed/__init__.py": ""}), *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.train
def test_verify_wheel_on_nodes_leaves_nothing(dsrun, here, nodes):
    path = fake_deepspeed(here, {"tiny": compiled(here / "a", FINE)}, torch_minor())
    node = add_node(nodes, "n1")
    done = dsrun("verify-wheel", str(path), "--on", "n1", "--python", "./env/bin/python")
    assert (done.returncode, done.stderr) == (0, "")
    assert "installed, 1 loaded" in done.stdout
    assert installed(node) == []
    (folder,) = set(re.findall(r"/tmp/dsrun-verify-\w+", Path(f"{nodes}.log").read_text()))
    assert not Path(folder).exists()
