"""Signs of life on one side, and what a supervisor reads of them on the other."""

import os
import time

from dsrun.runs.heartbeat import Heart, read_beats


def test_a_beat_says_who_and_where(tmp_path):
    heart = Heart.from_environment({"DSRUN_HEARTBEAT": str(tmp_path)}, 3, answers=True)
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


def test_every_sign_of_life_counts_up(tmp_path):
    heart = Heart(tmp_path, 0)
    before = read_beats(tmp_path)[0].beats
    heart.beat()
    heart.step(1)
    assert read_beats(tmp_path)[0].beats == before + 2


def test_the_slowest_step_leaves_out_what_lies_between_phases(tmp_path):
    heart = Heart(tmp_path, 0)
    heart.step(1)
    time.sleep(0.03)
    heart.step(2)
    slowest = read_beats(tmp_path)[0].slowest_step
    assert slowest >= 0.03
    heart.enter("saving")
    time.sleep(slowest * 2)
    heart.step(3)
    assert read_beats(tmp_path)[0].slowest_step == slowest


def test_without_a_supervisor_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Heart.from_environment({}, 0).step(1)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_read_is_left_out(tmp_path):
    Heart(tmp_path, 1)
    (tmp_path / "rank-2").write_text("{")
    (tmp_path / "rank-4").write_text('{"rank": 4}')
    assert list(read_beats(tmp_path)) == [1]
    assert read_beats(tmp_path / "nowhere") == {}
