"""Heartbeats as a rank writes them and a supervisor reads them."""

import os
import time

from dsrun.runs.heartbeat import HeartbeatWriter, read_beats


def test_heartbeat_has_rank_pid_phase_and_step(tmp_path):
    """A heartbeat tells which rank is where."""
    heart = HeartbeatWriter.from_environment({"DSRUN_HEARTBEAT": str(tmp_path)}, 3, answers=True)
    heart.enter("tokenising")
    (beat,) = read_beats(tmp_path).values()
    assert (beat.rank, beat.pid, beat.phase, beat.step, beat.answers) == (
        3,
        os.getpid(),
        "tokenising",
        0,
        True,
    )
    assert abs(beat.time - time.monotonic()) < 60


def test_heartbeat_counter_increases(tmp_path):
    """Every sign of life increases the counter."""
    heart = HeartbeatWriter(tmp_path, 0)
    before = read_beats(tmp_path)[0].beats
    heart.beat()
    heart.step(1)
    assert read_beats(tmp_path)[0].beats == before + 2


def test_heartbeat_slowest_step_excludes_phase_changes(tmp_path):
    """The slowest step does not include the time between phases."""
    heart = HeartbeatWriter(tmp_path, 0)
    heart.step(1)
    time.sleep(0.03)
    heart.step(2)
    slowest = read_beats(tmp_path)[0].slowest_step
    assert slowest >= 0.03
    heart.enter("saving")
    time.sleep(slowest * 2)
    heart.step(3)
    assert read_beats(tmp_path)[0].slowest_step == slowest


def test_heartbeat_not_written_without_supervisor(tmp_path, monkeypatch):
    """Without a supervisor no heartbeat is written."""
    monkeypatch.chdir(tmp_path)
    HeartbeatWriter.from_environment({}, 0).step(1)
    assert list(tmp_path.iterdir()) == []


def test_unreadable_heartbeats_ignored(tmp_path):
    """Heartbeats that cannot be read are left out."""
    HeartbeatWriter(tmp_path, 1)
    (tmp_path / "rank-2").write_text("{")
    (tmp_path / "rank-4").write_text('{"rank": 4}')
    assert list(read_beats(tmp_path)) == [1]
    assert read_beats(tmp_path / "nowhere") == {}
