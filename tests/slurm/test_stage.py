"""--stage: what is copied runs from each node's own disk, and is gone from there afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

LOOK = """\
import json, os, socket, staged_here
with open(f"{socket.gethostname()}.json", "w") as file:
    json.dump({"module": staged_here.__file__, "data": staged_here.DATA}, file)
"""
MODULE = "DATA = 'staged'\n"


def wheel(folder: Path) -> Path:
    """A wheel of one module."""
    path = folder / "staged_here-1.0-py3-none-any.whl"
    facts = "staged_here-1.0.dist-info/"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("staged_here.py", MODULE)
        file.writestr(facts + "METADATA", "Metadata-Version: 2.1\nName: staged-here\nVersion: 1.0\n")
        file.writestr(
            facts + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(facts + "RECORD", "")
    return path


def environment(folder: Path) -> Path:
    """A virtual environment that has the module itself, and borrows torch and the rest from the tests' own."""
    path = folder / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", path], check=True)
    packages = next(path.glob("lib/python*/site-packages"))
    (packages / "staged_here.py").write_text(MODULE)
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return path


def tar(folder: Path) -> Path:
    path = folder / "env.tar.gz"
    subprocess.run(["tar", "-C", environment(folder), "-czf", path, "."], check=True)
    return path


@pytest.mark.parametrize("make", [wheel, tar, environment])
def test_stage_runs_from_local_disk_of_each_node(ada, place, cluster, make):
    staged = make(place)
    (place / "look.py").write_text(LOOK)
    job = ada.submit(
        "--nodes", 2, "--gpus-per-node", "0", "--stage", staged.name, program=["python", "look.py"], cwd=place
    )
    job.wait_for("COMPLETED")
    nodes = job.machines()
    assert len(nodes) == 2
    for node in nodes:
        facts = json.loads((place / f"{node}.json").read_text())
        assert facts["data"] == "staged"
        # /tmp is each machine's own.
        assert facts["module"].startswith("/tmp/dsrun-20001-")
        left = list((cluster.root / "disk" / node / "tmp").glob("dsrun-20001-*"))
        assert left == []


def test_stage_removes_copies_of_gone_jobs_only(ada, place, cluster):
    """Copies of jobs that are gone are removed, and no others."""
    waiting = ada.submit("--nodes", 1, "--gpus-per-node", "0", "--begin", "now+1day", program=["true"], cwd=place)
    gone, known, foreign = names = ["dsrun-20001-99999999", f"dsrun-20001-{waiting.id}", "dsrun-1-99999999"]
    disks = list((cluster.root / "disk").glob("*/tmp"))
    assert disks
    for copy in (disk / name for disk in disks for name in names):
        copy.mkdir()
        os.chown(copy, 20001, 20001)
    staged = wheel(place)
    (place / "look.py").write_text(LOOK)
    job = ada.submit(
        "--nodes", 2, "--gpus-per-node", "0", "--stage", staged.name, program=["python", "look.py"], cwd=place
    )
    job.wait_for("COMPLETED")
    for node in job.machines():
        left = {each.name for each in (cluster.root / "disk" / node / "tmp").glob("dsrun-*-*")}
        assert {known, foreign} <= left
        assert gone not in left
    ada.run("scancel", waiting.id)
    for copy in (disk / name for disk in disks for name in names):
        if copy.exists():
            copy.rmdir()


WAITS = """#!/bin/bash
# In the first start it waits to be ended.
touch "$SLURM_SUBMIT_DIR/unpacking-$SLURM_NODEID"
[ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] || sleep 600
"""


@pytest.mark.parametrize("target", [("--batch",), ()], ids=["batch", "steps"])
def test_usr1_during_stage_requeues(ada, place, target):
    """A job told to stop while it copies goes back into the queue."""
    staged = environment(place)
    waits = staged / "bin" / "conda-unpack"
    waits.write_text("import os, sys\nos.execv('/bin/bash', ['bash', os.environ['SLURM_SUBMIT_DIR'] + '/waits'])\n")
    (place / "waits").write_text(WAITS)
    (place / "look.py").write_text(LOOK)
    job = ada.submit(
        "--nodes", 2, "--gpus-per-node", "0", "--stage", staged.name, program=["python", "look.py"], cwd=place
    )
    job.until(lambda: len(list(place.glob("unpacking-*"))) == 2, "unpacking")
    ada.run("scancel", "--signal=USR1", *target, job.id)
    job.wait_for_restart()
    assert not list(place.glob("*.json"))
    job.wait_for("COMPLETED")
    assert job.restarts == 1
    assert len(list(place.glob("*.json"))) == 2
