"""A run's time adds up, and only steps that were kept count."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsrun.runs.goodput import Goodput, duration, goodput, words

START = datetime(2026, 11, 21, 4, 0, 0, tzinfo=UTC)


def at(moment: float, kind: str, /, **details: Any) -> dict[str, Any]:
    return {
        "time": (START + timedelta(seconds=moment)).isoformat(timespec="milliseconds"),
        "kind": kind,
        **details,
    }


def seconds(events: list[dict[str, Any]]) -> dict[str, float]:
    return {name: value for name, value in goodput(events).as_dict().items() if value and name != "goodput"}


def test_an_undisturbed_run() -> None:
    events = [
        at(0, "start", attempt=0),
        at(10, "training", step=0),
        at(60, "checkpoint_begin", step=50),
        at(64, "checkpoint_end", step=50, seconds=4.0),
        at(100, "evaluate", step=80, seconds=6.0),
        at(120, "end", step=100),
    ]
    ledger = goodput(events)
    assert ledger == Goodput(productive=100, restart=10, lost=0, saving=4, evaluating=6, idle=0)
    assert ledger.total == 120
    assert ledger.share == pytest.approx(100 / 120)


def test_a_run_that_only_evaluates_does_not_train() -> None:
    events = [at(0, "start"), at(50, "evaluate", step=0, seconds=42.0), at(51, "end", step=0)]
    assert seconds(events) == {"restart": 9.0, "evaluating": 42.0, "total": 51.0}


def test_an_evaluation_before_the_first_step_is_no_start() -> None:
    events = [
        at(0, "start"),
        at(9, "evaluate", step=0, seconds=4.0),
        at(10, "training", step=0),
        at(30, "end", step=9),
    ]
    assert seconds(events) == {"productive": 20.0, "restart": 6.0, "evaluating": 4.0, "total": 30.0}


def test_work_that_was_done_again_is_lost() -> None:
    events = [
        at(0, "start"),
        at(10, "training", step=0),
        at(30, "checkpoint_begin", step=20),
        at(31, "checkpoint_end", step=20, seconds=1.0),
        at(45, "failure", step=34, cause="rank_killed"),
        at(46, "restart", attempt=1),
        at(48, "start", attempt=1),
        at(49, "resume", step=20, attempt=1),
        at(50, "training", step=20),
        at(80, "end", step=50),
    ]
    assert seconds(events) == {
        "productive": 50.0, "restart": 15.0, "lost": 14.0, "saving": 1.0, "total": 80.0
    }  # fmt: skip


def test_only_the_steps_beyond_the_checkpoint_are_lost_of_a_stretch_without_events() -> None:
    events = [
        at(0, "start"),
        at(0, "training", step=0),
        at(40, "failure", step=40),
        at(40, "restart", attempt=1),
        at(42, "start", attempt=1),
        at(44, "training", step=30),
        at(50, "end", step=36),
    ]
    assert seconds(events) == {"productive": 36.0, "restart": 4.0, "lost": 10.0, "total": 50.0}


def test_going_back_twice_loses_the_same_work_once() -> None:
    events = [at(0, "start"), at(0, "training", step=0), at(10, "failure", step=10)]
    for again in (20, 40):
        events += [
            at(again, "restart", attempt=1),
            at(again, "start", attempt=1),
            at(again, "training", step=0),
            at(again + 10, "failure", step=10),
        ]
    events += [
        at(60, "restart"),
        at(60, "start", attempt=3),
        at(60, "training", step=0),
        at(70, "end", step=10),
    ]
    assert seconds(events) == {"productive": 10.0, "restart": 30.0, "lost": 30.0, "total": 70.0}


def test_what_a_run_that_was_given_up_did_after_its_last_checkpoint_is_lost() -> None:
    events = [
        at(0, "start"),
        at(0, "training", step=0),
        at(10, "checkpoint_begin", step=10),
        at(10, "checkpoint_end", step=10, seconds=0.0),
        at(15, "failure", step=15),
    ]
    assert seconds(events) == {"productive": 10.0, "lost": 5.0, "total": 15.0}


def test_a_step_that_was_never_finished_is_lost() -> None:
    events = [at(0, "start"), at(10, "training", step=0), at(14, "failure", step=0, cause="host_oom_killed")]
    assert seconds(events) == {"restart": 10.0, "lost": 4.0, "total": 14.0}


def test_hours_between_the_parts_of_a_requeued_job_are_idle() -> None:
    events = [
        at(0, "start"),
        at(5, "training", step=0),
        at(20, "checkpoint_begin", step=15),
        at(21, "checkpoint_end", step=15, seconds=1.0),
        at(21, "signal", step=15),
        at(7221, "start"),
        at(7225, "resume", step=15),
        at(7226, "training", step=15),
        at(7236, "end", step=25),
    ]
    assert seconds(events) == {
        "productive": 25.0, "restart": 10.0, "saving": 1.0, "idle": 7200.0, "total": 7236.0
    }  # fmt: skip


def test_after_an_end_without_a_word_only_what_was_told_of_is_known() -> None:
    events = [
        at(0, "start"),
        at(0, "training", step=0),
        at(60, "progress", step=60),
        at(3600, "start"),
        at(3605, "training", step=0),
        at(3670, "end", step=65),
    ]
    assert seconds(events) == {
        "productive": 65.0, "lost": 60.0, "restart": 5.0, "idle": 3540.0, "total": 3670.0
    }  # fmt: skip


def test_an_attempt_of_the_same_launcher_is_a_restart_and_no_idle_time() -> None:
    events = [at(0, "start"), at(0, "training", step=0), at(60, "progress", step=60)]
    events += [at(70, "start", attempt=1), at(80, "training", step=60), at(90, "end", step=70)]
    assert seconds(events) == {"productive": 70.0, "restart": 20.0, "total": 90.0}


def test_dying_while_loading_without_a_word_is_idle_until_the_next_start() -> None:
    assert seconds([at(0, "start"), at(100, "start"), at(110, "training", step=0)]) == {
        "idle": 100.0, "restart": 10.0, "total": 110.0
    }  # fmt: skip


def test_a_run_that_was_given_up_is_idle_until_it_is_started_again() -> None:
    events = [at(0, "start"), at(1, "failure"), at(1000, "start"), at(1002, "end", step=0)]
    assert seconds(events) == {"idle": 999.0, "restart": 3.0, "total": 1002.0}


def test_a_save_in_the_background_costs_what_training_waited_for_it() -> None:
    events = [
        at(0, "start"),
        at(0, "training", step=0),
        at(10, "checkpoint_begin", step=10),
        at(15, "progress", step=14),
        at(20, "checkpoint_end", step=10, seconds=0.5),
        at(30, "end", step=30),
    ]
    assert seconds(events) == {"productive": 29.5, "saving": 0.5, "total": 30.0}


def test_a_save_that_was_cut_off_was_saving() -> None:
    events = [
        at(0, "start"),
        at(0, "training", step=0),
        at(10, "checkpoint_begin", step=10),
        at(13, "failure"),
    ]
    assert seconds(events) == {"lost": 10.0, "saving": 3.0, "total": 13.0}


def test_a_torn_ledger_is_read_as_far_as_it_goes() -> None:
    events = [
        {"kind": "start"},
        at(0, "start"),
        {"time": "yesterday", "kind": "training"},
        at(5, "training"),
        at(7, "of another version", step="seven"),
        at(9, "evaluate", seconds=None),
        at(11, "evaluate", seconds="two"),
        at(12, "end"),
    ]
    assert seconds(events) == {"productive": 7.0, "restart": 5.0, "total": 12.0}


@pytest.mark.parametrize("events", [[], [at(3, "start")], [{}]])
def test_a_ledger_without_time_has_no_goodput(events: list[dict[str, Any]]) -> None:
    ledger = goodput(events)
    assert (ledger.total, ledger.share) == (0.0, 0.0)
    assert words(ledger) == "goodput 0.0%: 0 s training"


KINDS = [
    "start", "resume", "training", "progress", "checkpoint_begin", "checkpoint_end", "evaluate", "signal", "failure",
    "remedy", "restart", "end", "interval", "unheard of",
]  # fmt: skip
EVENTS = st.lists(
    st.tuples(
        st.integers(0, 5000),
        st.sampled_from(KINDS),
        st.fixed_dictionaries(
            {},
            optional={
                "step": st.integers(0, 30) | st.none(),
                "seconds": st.floats(0, 20) | st.none() | st.just(float("nan")),
                "attempt": st.integers(0, 2),
            },
        ),
    ),
    max_size=40,
)


@given(EVENTS)
def test_every_ledger_adds_up_to_the_time_between_its_first_and_last_event(
    steps: list[tuple[int, str, dict[str, Any]]],
) -> None:
    now, events = 0, []
    for delta, kind, details in steps:
        now += delta
        events.append(at(now / 1000, kind, **details))
    ledger = goodput(events)
    begin = steps[0][0] if steps else 0
    assert ledger.total == pytest.approx((now - begin) / 1000, abs=1e-9)
    assert min(ledger.as_dict().values()) >= 0
    assert ledger.share <= 1


@given(EVENTS)
def test_a_clock_that_goes_back_never_makes_time(steps: list[tuple[int, str, dict[str, Any]]]) -> None:
    events = [at(second, kind, **details) for second, kind, details in steps]
    times = [second for second, _, _ in steps]
    assert goodput(events).total == pytest.approx(max(times) - times[0] if times else 0)


def test_the_words_name_what_counts() -> None:
    ledger = Goodput(productive=2460, restart=62, lost=95, saving=20, evaluating=0.4, idle=0)
    assert words(ledger) == "goodput 93.3%: 41 min training, 62 s starting, 95 s lost work, 20 s saving"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 s"), (99, "99 s"), (100, "2 min"), (5900, "98 min"), (6000, "1.7 h"), (2e5, "2.3 days")],
)
def test_durations(value: float, text: str) -> None:
    assert duration(value) == text
