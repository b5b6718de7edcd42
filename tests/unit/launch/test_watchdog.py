"""Which rank hangs: every rule of the watchdog, on made-up heartbeats."""

from __future__ import annotations

import math

import pytest

from dsrun.launch.supervisor.watchdog import OTHER_PHASES_S, SHORTEST_S, Watchdog, limit_of
from dsrun.runs.heartbeat import Beat


def beat(rank: int, *, phase="training", step=10, slowest=1.0, at=0.0) -> Beat:
    return Beat(rank=rank, pid=rank, beats=1, time=at, phase=phase, step=step, slowest_step=slowest, answers=True)


def watched(*beats: Beat, timeout=None, states=None, until: float, every: float = 0.5):
    """What a watch says that looks from 0 s `until` then; the first hang and when."""
    watch = Watchdog(timeout)
    found = {each.rank: each for each in beats}
    letters = {each.rank: "S" for each in beats} | (states or {})
    now = 0.0
    while now <= until:
        hang = watch.poll(found, letters, now)
        if hang:
            return hang, now
        now += every
    return None, now


@pytest.mark.parametrize(
    ("said", "timeout", "limit"),
    [
        (beat(0, slowest=1.0), None, SHORTEST_S),
        (beat(0, slowest=20.0), None, 60.0),
        (beat(0, slowest=20.0), 5.0, 5.0),
        (beat(0, slowest=20.0), 0, math.inf),
        (beat(0, slowest=0.0), None, OTHER_PHASES_S),
        (beat(0, slowest=0.0), 5.0, OTHER_PHASES_S),
        (beat(0, phase="saving"), None, OTHER_PHASES_S),
        (beat(0, phase="loading"), 2 * OTHER_PHASES_S, 2 * OTHER_PHASES_S),
        (beat(0, phase="loading"), 0, math.inf),
    ],
)
def test_watchdog_silence_limit_by_phase_and_timeout(said, timeout, limit):
    """How long a rank may be silent depends on its phase and the timeout."""
    assert limit_of(said, timeout) == limit


def test_watchdog_reports_silent_rank_after_limit():
    """A silent rank is found as soon as its limit has passed."""
    hang, when = watched(beat(0), beat(1), until=60)
    assert SHORTEST_S < when <= SHORTEST_S + 0.5
    assert hang.limit_s == SHORTEST_S
    assert not hang.stopped


def test_watchdog_blames_rank_with_lowest_step():
    """The others wait for it in the collective operation of the step after."""
    hang, _ = watched(beat(0, step=11), beat(1, step=10, at=0.1), until=60)
    assert hang.rank == 1
    assert "rank 1 hangs" in hang.message


def test_watchdog_blames_stopped_rank_at_any_step():
    """A stopped rank is to blame, whatever its step."""
    hang, _ = watched(beat(0, step=10), beat(1, step=11), states={1: "T"}, until=60)
    assert hang.rank == 1
    assert "SIGSTOP" in hang.message


def test_watchdog_finds_stopped_rank_outside_training():
    """A stopped rank is found also in phases that may be silent for long."""
    hang, when = watched(beat(0, phase="loading"), beat(1, phase="loading"), states={1: "T"}, until=60)
    assert hang.rank == 1
    assert when <= SHORTEST_S + 1


def test_watchdog_ignores_ranks_waiting_for_checkpoint_save():
    """Ranks that wait for one that saves do not hang."""
    hang, _ = watched(beat(0, phase="saving"), beat(1), until=600, every=1)
    assert hang is None


def test_watchdog_disabled_by_zero_timeout():
    """Nothing is a hang with a timeout of 0."""
    assert watched(beat(0), beat(1), states={1: "T"}, timeout=0, until=600, every=1)[0] is None


def test_watchdog_ignores_suspended_time():
    """The machine slept, or the scheduler suspended the whole job."""
    watch = Watchdog(None)
    said = {0: beat(0, at=0.0)}
    assert watch.poll(said, {0: "S"}, 1.0) is None
    assert watch.poll(said, {0: "S"}, 1000.0) is None
    late = [watch.poll(said, {0: "S"}, 1000.0 + seconds) for seconds in range(1, 12)]
    assert late[8] is None
    assert late[10] is not None


def test_watchdog_forgives_resumed_rank():
    """A rank that goes on again is forgiven."""
    watch = Watchdog(None)
    for second in range(9):
        assert watch.poll({0: beat(0)}, {0: "T"}, second) is None
    for second in range(9, 30):
        assert watch.poll({0: beat(0, at=second)}, {0: "S"}, second) is None
