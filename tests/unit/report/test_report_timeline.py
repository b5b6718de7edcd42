"""The time of a run as a report draws it: its events, the strip of what it was used for, and its axis."""

from __future__ import annotations

from itertools import pairwise

import pytest

from dsrun.events import event_kinds
from dsrun.report.timeline import MOST_ROWS, clock, rows, strip, time_ticks
from dsrun.runs.goodput import goodput
from tests.run_folders import event


def test_many_events_are_shortened_but_not_failures() -> None:
    events = [event("evaluate", second, step=second) for second in range(1000)]
    events[500] = event("failure", 500, cause="nan_loss")
    found = rows(events)
    assert len(found) <= MOST_ROWS + 2
    assert [row.text for row in found if row.bad] == ["failed: nan_loss"]
    assert sum(row.skipped for row in found) + len(found) - 1 == 1000


@pytest.mark.parametrize("kind", [name for name, kind in event_kinds().items() if "`step`" in kind.keys])
def test_step_of_each_event_is_shown(kind: str) -> None:
    assert [row.step for row in rows([event(kind, step=1234)])] == ["1,234"] * (event_kinds()[kind].level != "quiet")


def test_stalls_are_lost_time_in_the_strip() -> None:
    events = [event("start"), event("training", 0), event("straggler", 60, stalls=3, lost_s=15.0), event("end", 100)]
    segments = strip(goodput(events))
    assert [(each.use, each.length) for each in segments] == [("training", 0.45), ("lost", 0.15), ("training", 0.4)]


def test_strip_of_time_is_all_of_it() -> None:
    """What is too short to be seen is not lost, either."""
    events = [event("start", starting_s=10.0, queued_s=20.0), event("training", 1)]
    for second in range(10, 25_000, 10):
        events += [event("checkpoint_begin", second), event("checkpoint_end", second + 1, seconds=1.0)]
    segments = strip(goodput([*events, event("end", 30_000)]))
    assert [segment.use for segment in segments[:2]] == ["queued", "training"]
    assert len(segments) < 1000
    assert sum(segment.length for segment in segments) == pytest.approx(1)
    assert all(b.begin == pytest.approx(a.begin + a.length) for a, b in pairwise(segments))


def test_times_in_words() -> None:
    assert [clock(seconds) for seconds in (5, 754, 10921, 183721)] == ["0:05", "12:34", "3:02:01", "2 d 3:02:01"]
    assert [text for _, text in time_ticks(85)] == ["0", "15 s", "30 s", "45 s", "1 min", "1.25 min"]
    assert time_ticks(0) == []
    assert len(time_ticks(1e9)) <= 7
