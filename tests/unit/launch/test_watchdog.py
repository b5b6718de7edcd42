"""Which rank hangs: every rule of the watchdog, on made-up heartbeats."""

from __future__ import annotations

import math

import pytest

from dsrun.launch.supervisor.watchdog import (
    BUSY_S,
    SHORTEST_ELSEWHERE_S,
    SHORTEST_S,
    STILL_S,
    STILL_WRITING_S,
    UNKNOWN_S,
    PhaseLimits,
    Watchdog,
    busy_limit,
)
from dsrun.runs.heartbeat import RankHeartbeat


def beat(rank: int, *, phase="training", step=10, slowest=1.0, at=0.0, group=0.0, compiles=False) -> RankHeartbeat:
    return RankHeartbeat(
        rank=rank, pid=rank, beats=1, time=at, phase=phase, step=step, slowest_step=slowest, answers=True,
        group_timeout_s=group, compiles=compiles,
    )  # fmt: skip


def watched(*beats: RankHeartbeat, timeout=None, states=None, until: float, every: float = 0.5):
    """What a watch says that looks from 0 s `until` then; the first hang and when."""
    watch = Watchdog(PhaseLimits(timeout))
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
        (beat(0, slowest=0.0), None, UNKNOWN_S),
        (beat(0, slowest=0.0), 5.0, 5.0),
        (beat(0, phase="saving"), None, UNKNOWN_S),
        (beat(0, phase="ending"), 5.0, 5.0),
        (beat(0, phase="leaving"), None, UNKNOWN_S),
        (beat(0, phase="loading"), 7200.0, 7200.0),
        (beat(0, phase="loading"), 0, math.inf),
        (beat(0, phase="running", group=30.0), 5.0, math.inf),
        (beat(0, phase="evaluating", group=30.0), None, 27.0),
        (beat(0, slowest=20.0, group=30.0), None, 30.0),
        (beat(0, slowest=900.0, group=1800.0), None, 1620.0),
        (beat(0, slowest=0.0, group=1800.0, compiles=True), None, 1620.0),
        (beat(0, slowest=1.0, compiles=True), None, SHORTEST_ELSEWHERE_S),
        (beat(0, slowest=0.0, compiles=True), 5.0, 5.0),
    ],
)
def test_watchdog_silence_limit_by_phase_and_timeout(said, timeout, limit):
    """A given timeout holds in every phase; without one the limit is below the time-out of the process group, but above
    what a step has taken."""
    assert PhaseLimits(timeout).limit(said) == limit


def still(*beats: RankHeartbeat, timeout=None, states=None, computed=None, others=False, at: float):
    watch = Watchdog(PhaseLimits(timeout, others=others))
    letters = {each.rank: "S" for each in beats} | (states or {})
    found = {each.rank: each for each in beats}
    for now in [*range(int(at)), at]:
        hang = watch.poll(found, letters, float(now), computed or {}, 0.0)
    return hang


@pytest.mark.parametrize(
    ("phase", "slowest", "timeout", "limit"),
    [
        ("evaluating", 1.0, None, STILL_S),
        ("training", 40.0, None, 60.0),
        ("ending", 1.0, None, STILL_S),
        ("saving", 1.0, None, SHORTEST_ELSEWHERE_S),
        ("exporting", 1.0, None, SHORTEST_ELSEWHERE_S),
        ("saving", 1.0, 190.0, 190.0),
    ],
)
def test_ranks_told_to_stop_that_all_stand_still_hang(phase, slowest, timeout, limit):
    """The one that got least far is named."""
    beats = [beat(rank, phase=phase, step=10 - rank, slowest=slowest) for rank in (0, 1)]
    assert still(*beats, timeout=timeout, at=limit - 1) is None
    assert still(*beats, timeout=timeout, at=limit + 1).rank == 1


def test_a_second_save_may_stand_still_for_less():
    limits = PhaseLimits(None)
    for at, said in enumerate(("saving", "training", "saving")):
        limits.update({0: beat(0, phase=said, at=float(at))})
    assert limits.still_limit(beat(0, phase="saving"), in_kernel=False) == STILL_WRITING_S
    assert limits.still_limit(beat(0, phase="exporting"), in_kernel=False) == SHORTEST_ELSEWHERE_S


@pytest.mark.parametrize(
    ("phase", "more"),
    [
        ("evaluating", {"computed": {0: 190.0}}),
        ("saving", {"states": {0: "D"}}),
        ("running", {}),
        ("evaluating", {"timeout": 0}),
        ("saving", {"others": True}),
    ],
)
def test_ranks_told_to_stop_may_work_on(phase, more):
    """One that computes, or waits in the kernel, for a machine that is not seen, or in code of the user's."""
    assert still(beat(0, phase=phase), beat(1, phase=phase), **more, at=200.0) is None


def test_phases_are_limited_by_their_own_silences():
    """The second evaluation by the longest silence of the first, a saving that takes long by itself."""
    limits = PhaseLimits(None)
    for at, phase in [
        (0.0, "evaluating"),
        (1.0, "evaluating"),
        (90.0, "training"),
        (91.0, "saving"),
        (93.0, "training"),
    ]:
        limits.update({0: beat(0, phase=phase, at=at)})
    assert limits.limit(beat(0, phase="evaluating")) == 3 * 89.0
    assert limits.limit(beat(0, phase="saving")) == SHORTEST_ELSEWHERE_S
    assert limits.limit(beat(0, phase="generating")) == UNKNOWN_S


def test_later_attempts_know_times_of_earlier_ones():
    """How long a first step and a usual step take; another process, with another rank's number or not, starts anew."""
    limits = PhaseLimits(None)
    limits.update({0: beat(0, slowest=0.0, at=0.0)})
    limits.update({0: beat(0, slowest=0.0, at=50.0)})
    limits.update({0: beat(0, slowest=20.0, at=70.0)})
    restarted = RankHeartbeat(
        rank=0, pid=99, beats=1, time=500.0, phase="training", step=0, slowest_step=0.0, answers=True
    )
    limits.update({0: restarted})
    assert limits.limit(restarted) == 3 * 50.0
    assert limits.limit(beat(0, slowest=1.0)) == 3 * 20.0


@pytest.mark.parametrize(("phase", "expected"), [("loading", BUSY_S), ("evaluating", UNKNOWN_S)])
def test_other_nodes_may_load_for_longer(phase, expected):
    """Ranks wait for those of other nodes, which this watchdog does not see."""
    limit = PhaseLimits(None, others=True).limit(beat(0, phase=phase))
    assert 0.9 * expected <= limit < 1.01 * expected
    again = PhaseLimits(None, others=True)
    for at, said in enumerate(("loading", phase, "training")):
        again.update({0: beat(0, phase=said, at=float(at))})
    assert again.limit(beat(0, phase=phase)) == UNKNOWN_S
    assert PhaseLimits(8.0, others=True).limit(beat(0, phase="loading")) == UNKNOWN_S
    assert PhaseLimits(8.0, others=True).limit(beat(0, phase="saving")) == 8.0


@pytest.mark.parametrize(("phase", "hangs"), [("exporting", False), ("evaluating", True), ("leaving", True)])
def test_rank_that_computes_lives_without_beat(phase, hangs):
    """Writing the model has no beat; in the loop of batches a rank that waits on a GPU computes too."""
    watch = Watchdog(PhaseLimits(20.0))
    said = {0: beat(0, phase=phase)}
    found = [watch.poll(said, {0: "S"}, float(now), {0: float(now)}) for now in range(0, 60)]
    assert any(found) is hangs


@pytest.mark.parametrize(
    ("state", "phase", "hangs"), [("D", "saving", False), ("S", "saving", True), ("D", "evaluating", True)]
)
def test_rank_waits_for_a_file_server_that_changes_over(state, phase, hangs):
    """Minutes, in uninterruptible sleep, in a save that took a second before."""
    limits = PhaseLimits(None)
    for at, said in enumerate((phase, "training", phase)):
        limits.update({0: beat(0, phase=said, at=float(at))})
    watch = Watchdog(limits)
    said = {0: beat(0, phase=phase, at=2.0)}
    found = [watch.poll(said, {0: state}, float(now)) for now in range(2, int(UNKNOWN_S))]
    assert any(found) is hangs


def test_rank_that_computes_for_ever_hangs():
    watch = Watchdog(PhaseLimits(None))
    said = {0: beat(0, phase="loading")}
    end = int(busy_limit(said[0], None))
    assert end < BUSY_S
    found = [watch.poll(said, {0: "S"}, float(now), {0: 10.0}) for now in range(end - 2, end + 2)]
    assert [bool(each) for each in found] == [True] * 4
    watch = Watchdog(PhaseLimits(None))
    found = [watch.poll(said, {0: "S"}, float(now), {0: float(now)}) for now in range(end - 2, end + 2)]
    assert [bool(each) for each in found] == [False, False, False, True]


@pytest.mark.parametrize(("expected", "timeout", "hangs"), [(True, None, True), (False, None, False), (True, 0, False)])
def test_rank_without_first_beat_hangs(expected, timeout, hangs):
    """As one that hangs in an import; a program of the user's own may have no beats at all."""
    watch = Watchdog(PhaseLimits(timeout), beat_expected=expected)
    found = [watch.poll({}, {0: "S"}, float(now)) for now in range(int(UNKNOWN_S) + 5)]
    assert any(found) is hangs


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
    hang, _ = watched(beat(0, phase="saving"), beat(1), until=UNKNOWN_S - 1, every=1)
    assert hang is None


def test_watchdog_disabled_by_zero_timeout():
    """Nothing is a hang with a timeout of 0."""
    assert watched(beat(0), beat(1), states={1: "T"}, timeout=0, until=600, every=1)[0] is None


def test_watchdog_ignores_suspended_time():
    """The machine slept, or the scheduler suspended the whole job."""
    watch = Watchdog(PhaseLimits(None))
    said = {0: beat(0, at=0.0)}
    assert watch.poll(said, {0: "S"}, 1.0) is None
    assert watch.poll(said, {0: "S"}, 1000.0) is None
    late = [watch.poll(said, {0: "S"}, 1000.0 + seconds) for seconds in range(1, 12)]
    assert late[8] is None
    assert late[10] is not None


def test_watchdog_forgives_resumed_rank():
    """A rank that goes on again is forgiven."""
    watch = Watchdog(PhaseLimits(None))
    for second in range(9):
        assert watch.poll({0: beat(0)}, {0: "T"}, second) is None
    for second in range(9, 30):
        assert watch.poll({0: beat(0, at=second)}, {0: "S"}, second) is None
