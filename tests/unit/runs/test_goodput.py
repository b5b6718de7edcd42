"""A run's time adds up, and only steps that were kept count."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsrun.runs.goodput import Goodput, goodput, goodput_line

START = datetime(2026, 11, 21, 4, 0, 0, tzinfo=UTC)


def at(moment: float, kind: str, /, **details: Any) -> dict[str, Any]:
    return {
        "time": (START + timedelta(seconds=moment)).isoformat(timespec="milliseconds"),
        "kind": kind,
        **details,
    }


def seconds(events: list[dict[str, Any]]) -> dict[str, float]:
    return {name: value for name, value in goodput(events).as_dict().items() if value and name != "goodput"}


def test_goodput_after_clock_was_set_back() -> None:
    """Between events of one machine its uptime counts; after a restart of the machine the clock."""
    events = [
        at(0, "start", host="a", boot="1", uptime=1000.0),
        at(10, "training", step=0, host="a", boot="1", uptime=1010.0),
        at(-3500, "progress", step=50, host="a", boot="1", uptime=1110.0),
        at(-3490, "checkpoint_begin", step=60, host="a", boot="1", uptime=1120.0),
        at(-3488, "checkpoint_end", step=60, seconds=2.0, host="a", boot="1", uptime=1122.0),
        at(-3400, "start", host="a", boot="2", uptime=30.0),
    ]
    assert seconds(events) == {"productive": 110, "restart": 10, "saving": 2, "idle": 88, "total": 210}


def test_goodput_of_undisturbed_run() -> None:
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


def test_time_that_all_waited_for_a_stalled_rank_is_lost() -> None:
    """No more of it than there was since the event before; a slow rank's event has none."""
    events = [
        at(0, "start", attempt=0),
        at(10, "training", step=0),
        at(60, "straggler", step=40, rank=1, stalls=2, lost_s=12.0),
        at(70, "straggler", step=50, rank=2),
        at(71, "straggler", step=51, rank=1, stalls=3, lost_s=30.0),
        at(110, "end", step=100),
    ]
    assert seconds(events) == {"productive": 87, "restart": 10, "lost": 13, "total": 110}


def test_what_a_program_of_ones_own_has_saved_is_not_known() -> None:
    """So its steps count after a failure too, until a restart makes them again."""
    events = [at(0, "start", program="ddp"), at(10, "training", step=0), at(110, "failure", step=100)]
    assert seconds(events) == {"productive": 100, "restart": 10, "total": 110}
    again = [
        *events,
        at(120, "start", program="ddp", attempt=1),
        at(130, "training", step=50),
        at(180, "end", step=100),
    ]
    assert seconds(again)["lost"] == 50


def test_goodput_of_requeued_job_counts_queue_and_start_up() -> None:
    """Before its first start as well; of the time since the event before no more than there is."""
    events = [
        at(0, "start", attempt=0, starting_s=20.0, queued_s=300.0),
        at(10, "training", step=0),
        at(110, "checkpoint_begin", step=50),
        at(110, "checkpoint_end", step=50, seconds=0.0),
        at(110, "signal", step=50),
        at(200, "start", attempt=0, requeue=1, starting_s=15.0, queued_s=60.0),
        at(205, "training", step=50),
        at(305, "signal", step=100),
        at(335, "start", attempt=0, requeue=2, starting_s=15.0, queued_s=120.0),
    ]
    ledger = goodput(events)
    assert ledger == Goodput(productive=200, restart=65, lost=0, saving=0, evaluating=0, queued=375, idle=15)
    assert "6 min in the queue" in goodput_line(ledger)


def test_goodput_while_the_supervisor_waits_is_that_of_before() -> None:
    """Training while it waits during an attempt, restarting where GPU memory is waited for."""
    events = [at(0, "start"), at(10, "training", step=0), at(20, "waiting"), at(50, "progress", step=40)]
    assert seconds(events) == {"productive": 40, "restart": 10, "total": 50}
    events += [at(60, "checkpoint_end", step=50), at(60, "failure", step=50), at(61, "restart"), at(65, "waiting")]
    assert seconds([*events, at(70, "start", attempt=1)]) == {"productive": 50, "restart": 20, "total": 70}


def test_goodput_of_finished_run_that_could_not_be_pushed() -> None:
    """The final model is on the disk: what fails after the end loses no work."""
    events = [at(0, "start"), at(10, "training", step=0), at(60, "end", step=50), at(70, "failure")]
    assert seconds(events) == {"productive": 50, "restart": 10, "idle": 10, "total": 70}


def test_goodput_of_evaluation_only_run() -> None:
    """A run that only evaluates has no training time."""
    events = [at(0, "start"), at(50, "evaluate", step=0, seconds=42.0), at(51, "end", step=0)]
    assert seconds(events) == {"restart": 9.0, "evaluating": 42.0, "total": 51.0}


def test_goodput_evaluation_before_first_step() -> None:
    """An evaluation before the first step is not counted as starting."""
    events = [
        at(0, "start"),
        at(9, "evaluate", step=0, seconds=4.0),
        at(10, "training", step=0),
        at(30, "end", step=9),
    ]
    assert seconds(events) == {"productive": 20.0, "restart": 6.0, "evaluating": 4.0, "total": 30.0}


def test_goodput_repeated_steps_are_lost() -> None:
    """Steps that were done again count as lost."""
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


def test_goodput_lost_steps_without_events() -> None:
    """Of a stretch without events only the steps beyond the checkpoint are lost."""
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


def test_goodput_repeated_restart_at_same_step() -> None:
    """Going back twice loses the same work only once."""
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


def test_goodput_steps_after_last_checkpoint_are_lost() -> None:
    """What an abandoned run did after its last checkpoint is lost."""
    events = [
        at(0, "start"),
        at(0, "training", step=0),
        at(10, "checkpoint_begin", step=10),
        at(10, "checkpoint_end", step=10, seconds=0.0),
        at(15, "failure", step=15),
    ]
    assert seconds(events) == {"productive": 10.0, "lost": 5.0, "total": 15.0}


def test_goodput_unfinished_step_is_lost() -> None:
    """A step that was never finished is lost."""
    events = [at(0, "start"), at(10, "training", step=0), at(14, "failure", step=0, cause="host_oom_killed")]
    assert seconds(events) == {"restart": 10.0, "lost": 4.0, "total": 14.0}


def test_goodput_time_between_requeues_is_idle() -> None:
    """Hours between the parts of a requeued job are idle."""
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


def test_goodput_after_unrecorded_end_is_idle() -> None:
    """When a run ends without an event, the time since the last event is idle."""
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


def test_goodput_restart_by_same_launcher_is_not_idle() -> None:
    """The time before another attempt of the same launcher is restart time, not idle time."""
    events = [at(0, "start"), at(0, "training", step=0), at(60, "progress", step=60)]
    events += [at(70, "start", attempt=1), at(80, "training", step=60), at(90, "end", step=70)]
    assert seconds(events) == {"productive": 70.0, "restart": 20.0, "total": 90.0}


def test_goodput_unrecorded_death_while_loading_is_idle() -> None:
    """After dying unnoticed while loading, a run is idle until the next start."""
    assert seconds([at(0, "start"), at(100, "start"), at(110, "training", step=0)]) == {
        "idle": 100.0, "restart": 10.0, "total": 110.0
    }  # fmt: skip


def test_goodput_abandoned_run_is_idle_until_next_start() -> None:
    """A run that was given up is idle until it is started again."""
    events = [at(0, "start"), at(1, "failure"), at(1000, "start"), at(1002, "end", step=0)]
    assert seconds(events) == {"idle": 999.0, "restart": 3.0, "total": 1002.0}


def test_goodput_background_save_costs_only_waiting() -> None:
    """A background save costs only what training waited for it."""
    events = [
        at(0, "start"),
        at(0, "training", step=0),
        at(10, "checkpoint_begin", step=10),
        at(15, "progress", step=14),
        at(20, "checkpoint_end", step=10, seconds=0.5),
        at(30, "end", step=30),
    ]
    assert seconds(events) == {"productive": 29.5, "saving": 0.5, "total": 30.0}


def test_goodput_interrupted_save_counts_as_saving() -> None:
    """A save that was cut off counts as saving."""
    events = [
        at(0, "start"),
        at(0, "training", step=0),
        at(10, "checkpoint_begin", step=10),
        at(13, "failure"),
    ]
    assert seconds(events) == {"lost": 10.0, "saving": 3.0, "total": 13.0}


def test_goodput_of_torn_event_log() -> None:
    """A torn event log is read as far as it goes."""
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
def test_goodput_without_elapsed_time_is_zero(events: list[dict[str, Any]]) -> None:
    """An event log that spans no time has no goodput."""
    ledger = goodput(events)
    assert (ledger.total, ledger.share) == (0.0, 0.0)
    assert goodput_line(ledger) == "goodput 0.0%: 0 s training"


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
def test_goodput_parts_add_up_to_total_time(
    steps: list[tuple[int, str, dict[str, Any]]],
) -> None:
    """Every event log adds up to the time between its first and last event."""
    now, events = 0, []
    for delta, kind, details in steps:
        now += delta
        events.append(at(now / 1000, kind, **details))
    ledger = goodput(events)
    begin = steps[0][0] if steps else 0
    assert ledger.total == pytest.approx((now - begin) / 1000, abs=1e-9)
    assert min(ledger.as_dict().values()) >= 0
    assert ledger.share <= 1
    parts = [(("productive" if use == "training" else use), spent) for use, spent in ledger.uses]
    for name, spent in ledger.as_dict().items() - {("total", ledger.total), ("goodput", ledger.share)}:
        assert sum(each for use, each in parts if use == name) == pytest.approx(spent, abs=1e-9)


@given(EVENTS)
def test_goodput_clock_going_back_adds_no_time(steps: list[tuple[int, str, dict[str, Any]]]) -> None:
    """A clock that goes back never adds time."""
    events = [at(second, kind, **details) for second, kind, details in steps]
    times = [second for second, _, _ in steps]
    assert goodput(events).total == pytest.approx(max(times) - times[0] if times else 0)


def test_uses_of_time_stand_in_their_order() -> None:
    """Work that was lost is that before the failure."""
    events = [
        at(0, "start", starting_s=5.0), at(10, "training", step=0), at(60, "checkpoint_end", step=50),
        at(80, "progress", step=70), at(90, "failure", step=70), at(91, "restart"), at(95, "start", attempt=1),
        at(100, "training", step=50), at(150, "end", step=100),
    ]  # fmt: skip
    assert list(goodput(events).uses) == [
        ("restart", 5), ("restart", 10), ("training", 50), ("lost", 20), ("lost", 10), ("restart", 1), ("restart", 4),
        ("restart", 5), ("training", 50),
    ]  # fmt: skip


def test_goodput_summary_names_what_counts() -> None:
    """The summary names only parts that matter."""
    ledger = Goodput(productive=2460, restart=62, lost=95, saving=20, evaluating=0.4, idle=0)
    assert goodput_line(ledger) == "goodput 93.3%: 41 min training, 62 s starting, 95 s lost work, 20 s saving"
