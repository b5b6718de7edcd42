"""`dsrun stacks` of a run whose supervisors answer, do not answer, or are not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from dsrun.launch.context import LocalWorkers, TrainingJob
from dsrun.launch.supervisor.reaper import state_and_parent
from dsrun.launch.supervisor.status_files import StatusWriter
from dsrun.runs.node_status import NodeStatus, open_requests, read_node_status, request_stacks, write_node_status
from dsrun.system.host import hostname

PROGRAM = """
import sys, time
def wait_for_nothing():
    print("ready", flush=True)
    time.sleep(1000)
def hold_lock():
    import threading
    lock = threading.Lock()
    lock.acquire()
    print("ready", flush=True)
    lock.acquire()
hold_lock() if sys.argv[1] == "2" else wait_for_nothing()
"""


@pytest.fixture
def run(tmp_path):
    """The folder of a run of three ranks, which this process supervises."""
    folder = tmp_path / "run"
    folder.mkdir()
    (tmp_path / "train.py").write_text(PROGRAM)
    ranks = [
        subprocess.Popen([sys.executable, str(tmp_path / "train.py"), str(rank)], stdout=subprocess.PIPE)
        for rank in range(3)
    ]
    job = TrainingJob(topology=LocalWorkers(3, "cpu", 1), run=folder, program=["train.py"], env={})
    try:
        with StatusWriter(job) as writer:
            for each in ranks:
                assert each.stdout is not None
                each.stdout.readline()
                while state_and_parent(each.pid)[0] != "S":
                    time.sleep(0.01)
            writer.offer(0, {}, {rank: process.pid for rank, process in enumerate(ranks)})
            while not read_node_status(folder):
                time.sleep(0.01)
            yield folder
    finally:
        for each in ranks:
            each.kill()
            each.communicate()


def lost_node(run, number: int) -> None:
    """A node whose last status is an hour old."""
    time_ = "2026-11-25T12:00:00.000Z"
    write_node_status(run, NodeStatus(time=time_, host="node7", node=number, attempt=0, world_size=6))
    hour_ago = time.time() - 3600
    os.utime(run / "status" / f"node-{number}.json", (hour_ago, hour_ago))


def test_ranks_by_place(dsrun, run):
    """The rank in the lock has the two asleep beside it; whole stacks on demand."""
    done = dsrun("stacks", str(run), "--full")
    assert done.returncode == 0, done.stderr
    table, _, stacks = done.stdout.partition("\n\n")
    header, most, other = table.splitlines()
    assert header.split() == ["ranks", "place", "host"]
    assert most.startswith("ranks 0 and 1")
    assert "time.sleep at wait_for_nothing (" in most
    assert "train.py:5)" in most
    assert other.split()[:3] == ["rank", "2", "apart"]
    assert "lock.acquire at hold_lock (" in other
    assert other.endswith(hostname())
    assert stacks.count("== rank") == 3
    assert "hold_lock" in stacks


def test_ranks_by_place_as_json(dsrun, run):
    done = dsrun("stacks", str(run), "--format", "json")
    found = json.loads(done.stdout)
    assert found["version"] == 1
    assert [group["ranks"] for group in found["groups"]] == [[0, 1], [2]]
    assert (found["outliers"], found["unanswered"]) == ([2], [])
    assert [(each["rank"], each["host"], each["kind"]) for each in found["ranks"]] == [
        (0, hostname(), "sleep"),
        (1, hostname(), "sleep"),
        (2, hostname(), "lock"),
    ]
    assert "stacks" not in found["ranks"][0]


def test_node_that_does_not_answer_is_named(dsrun, run):
    """The others are shown."""
    lost_node(run, 1)
    done = dsrun("stacks", str(run))
    assert done.returncode == 1
    assert "ranks 0 and 1" in done.stdout
    assert done.stderr.splitlines()[-1].startswith("note: node 1 (node7) has not answered; its status is of 2026-11-25")


def test_run_without_supervisor(dsrun, tmp_path):
    """One that has ended, with its last status; the request is not left to a supervisor that starts later."""
    lost_node(tmp_path, 0)
    done = dsrun("stacks", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"no supervisor of {tmp_path} answers" in done.stderr
    assert not open_requests(tmp_path)


@pytest.mark.parametrize(("name", "problem"), [("nowhere", "does not exist"), ("", "has no status of a supervisor")])
def test_folder_that_is_no_run(dsrun, tmp_path, name, problem):
    done = dsrun("stacks", str(tmp_path / name))
    assert done.returncode == 2
    assert problem in done.stderr


def test_new_request_removes_earlier_ones(tmp_path):
    first, second = request_stacks(tmp_path), request_stacks(tmp_path)
    assert open_requests(tmp_path) == {second} != {first}
