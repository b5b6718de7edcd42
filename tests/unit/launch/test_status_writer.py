"""status/node-N.json of a supervisor, also where its thread is stuck or cannot write."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from dsrun.launch.context import LocalWorkers, TrainingJob
from dsrun.launch.supervisor.status_files import RankSnapshot, StatusWriter, node_status
from dsrun.runs.folder import STALE_S
from dsrun.runs.heartbeat import HeartbeatWriter, read_beats
from dsrun.runs.node_status import GpuSample, NodeStatus, read_node_status, write_node_status

GPU = GpuSample(index=0, name="NVIDIA H100", utilization=0.5)


@pytest.fixture
def job(tmp_path):
    return TrainingJob(topology=LocalWorkers(2, "cuda", 2), run=tmp_path, program=["x.py"], env={"A": "b"}, nnodes=2)


def written(run) -> NodeStatus:
    """The first status in the run folder."""
    deadline = time.monotonic() + 60
    while not (found := read_node_status(run)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found[0]


def test_status_of_ranks_gpus_and_host(job, tmp_path):
    """The environment of the job decides which GPUs are looked at."""
    HeartbeatWriter(tmp_path / "beats", 0).step(7)
    beats = read_beats(tmp_path / "beats")
    seen = []
    with StatusWriter(job, gpus=lambda env: seen.append(env) or (GPU,)) as writer:
        writer.offer(3, beats, {0: beats[0].pid, 1: 99})
        status = written(job.run)
    assert seen == [job.env]
    assert (status.node, status.attempt, status.world_size, status.gpus) == (0, 3, 4, (GPU,))
    first, second = status.ranks
    assert (first.rank, first.pid, first.phase, first.step) == (0, beats[0].pid, "training", 7)
    assert (second.rank, second.pid, second.phase, second.silent_s) == (1, 99, "running", 0.0)
    assert 0 < status.memory_used < status.memory_total
    assert 0 <= status.cpu <= 1


def test_silence_of_rank_in_status(job, tmp_path):
    """By the clock of the heartbeats, at the time of the look."""
    HeartbeatWriter(tmp_path / "beats", 1)
    beats = read_beats(tmp_path / "beats")
    sample = RankSnapshot(attempt=0, beats=beats, pids={}, now=beats[1].time + 12.5)
    assert node_status(sample, job, gpus=(), cpu=None).ranks[0].silent_s == 12.5


def test_samples_are_dropped_while_driver_hangs(job):
    """The supervisor's look returns at once, and the run's end does not wait for the driver."""
    asked, answer = threading.Semaphore(0), threading.Event()

    def gpus(env):
        asked.release()
        assert answer.wait(60)
        return ()

    with StatusWriter(job, gpus=gpus, every_s=0.0) as writer:
        writer.offer(0, {}, {0: 1})
        assert asked.acquire(timeout=60)
        for attempt in range(1, 100):
            writer.offer(attempt, {}, {0: 1})
    assert not read_node_status(job.run)
    answer.set()
    while written(job.run).attempt != 1:  # the one that was kept waiting
        time.sleep(0.01)
    assert asked.acquire(blocking=False)
    assert not asked.acquire(blocking=False)


def test_status_goes_on_after_failed_write(job):
    """As on a full disk."""
    blocked = job.run / "status"
    blocked.touch()
    tried = threading.Semaphore(0)
    with StatusWriter(job, gpus=lambda env: tried.release() or (), every_s=0.0) as writer:
        writer.offer(0, {}, {0: 1})
        assert tried.acquire(timeout=60)
        blocked.unlink()
        while not read_node_status(job.run):
            writer.offer(1, {}, {0: 1})
            time.sleep(0.01)


def test_status_at_most_every_few_seconds(job):
    with StatusWriter(job, gpus=lambda env: ()) as writer:
        writer.offer(0, {}, {0: 1})
        written(job.run)
        writer.offer(1, {}, {0: 1})
    assert written(job.run).attempt == 0


def test_status_of_nodes_of_earlier_start_removed(job):
    """A run that has resumed on fewer nodes shows no ghosts."""
    for node in range(4):
        status = NodeStatus(time="", host="old", node=node, attempt=9, world_size=8)
        write_node_status(job.run, status)
    with StatusWriter(job, gpus=lambda env: ()):
        while len(read_node_status(job.run)) > 2:
            time.sleep(0.01)
    assert [each.node for each in read_node_status(job.run)] == [0, 1]


@pytest.mark.parametrize(("nodes", "every_s"), [(1, 5), (200, 10), (5000, 15)])
def test_many_nodes_write_less_often(job, nodes, every_s):
    """They share one file server; the longest interval is below the age at which a status counts as old."""
    writer = StatusWriter(replace(job, nnodes=nodes))
    assert writer.every_s == every_s < STALE_S
