"""Which events of a run become messages, what they say, and how many of them."""

from __future__ import annotations

import pytest

from dsrun.errors import EXIT_INTERRUPTED, EXIT_RESUME
from dsrun.notifications.notification import (
    INTERVAL_S,
    Notification,
    NotificationRules,
    RateLimit,
    RunFacts,
    SupervisorEnd,
    sample,
)

FACTS = RunFacts(run="/runs/a", name="t5", host="gpu07")
TIME = "2026-11-25T12:00:00.000Z"


def event(kind, **details):
    return {"time": TIME, "kind": kind, **details}


def told(narrator, *events, end="running"):
    """The messages about `events`, and about the end where one is given."""
    found = [message for record in events for message in narrator.event(record)]
    return found if end == "running" else [*found, *narrator.end(end)]


def test_finish_has_last_step_and_loss():
    narrator = NotificationRules(FACTS)
    narrator.metrics([{"step": 10, "loss": 2.5}, {"step": 20, "loss": 1.5}, {"step": 20, "eval_loss": 1.0}])
    (message,) = told(
        narrator, event("training", step=0, max_steps=20), event("end", step=20), end=SupervisorEnd(exit_code=0)
    )
    assert (message.kind, message.step, message.max_steps, message.loss) == ("finish", 20, 20, 1.5)
    assert message.headline == "t5 finished after step 20, loss 1.5"
    assert message.next == "dsrun report /runs/a"
    (message,) = told(NotificationRules(FACTS), end=SupervisorEnd(exit_code=0))
    assert message.next == ""


def test_failure_has_cause_first_rank_and_next_command():
    failure = event("failure", cause="cuda_oom", rank=3, step=7, message="out of memory", exit_code=1)
    (message,) = told(
        NotificationRules(FACTS), failure, end=SupervisorEnd(exit_code=1, message="no remedy", log="/runs/a/logs/x.log")
    )
    assert (message.kind, message.rank, message.step, message.exit_code) == ("failure", 3, 7, 1)
    lines = dict(message.lines())
    assert lines["cause"] == "GPU memory exhausted · cuda_oom"
    assert "--micro-batch-size" in lines["fix"]
    assert lines["next"] == "dsrun diagnose /runs/a"
    assert lines["log"] == "/runs/a/logs/x.log"


def test_external_program_gets_fix_without_dsrun_flags():
    failure = event("failure", cause="cuda_oom", rank=0)
    (message,) = told(NotificationRules(FACTS, external=True), failure, end=SupervisorEnd(exit_code=1))
    assert message.cause is not None
    assert "--" not in message.cause.fix


@pytest.mark.parametrize(
    ("cause", "kind"), [("rank_hung", "hang"), ("nan_loss", "nan"), ("rank_killed", "restart"), ("unknown", "restart")]
)
def test_failure_with_restart_is_one_message(cause, kind):
    failure = event("failure", cause=cause, rank=1, step=5, message="rank 1 was silent", attempt=0)
    (message,) = told(NotificationRules(FACTS), failure, event("restart", attempt=1, message="again"))
    assert (message.kind, message.attempt, message.rank) == (kind, 1, 1)
    assert message.cause is not None
    assert message.cause.code == cause


def test_unknown_cause_shows_what_the_rank_said():
    failure = event("failure", cause="unknown", rank=1, message="ValueError: no such column")
    (message,) = told(NotificationRules(FACTS), failure, end=SupervisorEnd(exit_code=1))
    assert message.headline == "t5 failed: ValueError: no such column"


def test_failure_before_the_first_attempt_has_the_supervisors_words():
    (message,) = told(NotificationRules(FACTS), end=SupervisorEnd(exit_code=2, message="--output is a file"))
    assert (message.kind, message.headline) == ("failure", "t5 failed: --output is a file")


def test_supervisor_that_was_killed_is_a_failure():
    (message,) = told(NotificationRules(FACTS), end=None)
    assert message.kind == "failure"
    assert message.cause is not None
    assert message.cause.code == "run_killed"


def test_skipped_nan_step_is_told():
    (message,) = told(NotificationRules(FACTS), event("nan", step=12, message="loss is NaN"))
    assert (message.kind, message.step, message.detail) == ("nan", 12, "loss is NaN")


def test_preemption_is_told_once():
    """At the event that the ranks write, or at the end of a program that writes none."""
    signal = event("signal", step=40, signal="SIGUSR1", rank=2, signalled_host="gpu09")
    saved = event("checkpoint_end", step=40, path="checkpoint-40")
    (message,) = told(
        NotificationRules(FACTS), saved, signal, end=SupervisorEnd(exit_code=EXIT_RESUME, message="stopped")
    )
    assert (message.kind, message.step) == ("preemption", 40)
    assert message.detail == "SIGUSR1 to rank 2 on gpu09; saved checkpoint-40"
    (message,) = told(NotificationRules(FACTS), end=SupervisorEnd(exit_code=EXIT_RESUME, message="stopped by SIGTERM"))
    assert (message.kind, message.detail) == ("preemption", "stopped by SIGTERM")
    (message,) = told(NotificationRules(FACTS), end=SupervisorEnd(exit_code=143, message="left", stopped=True))
    assert message.kind == "preemption"


def test_interruption_by_the_user_is_not_told():
    assert told(NotificationRules(FACTS), end=SupervisorEnd(exit_code=EXIT_INTERRUPTED)) == []


def test_requeued_job_is_told_at_its_start():
    (message,) = NotificationRules(FACTS, requeue=2).begin()
    assert (message.kind, message.headline) == ("requeue", "t5 runs again, requeued 2 times")
    assert NotificationRules(FACTS).begin() == []


def test_other_events_are_not_told():
    kinds = ("start", "resume", "progress", "checkpoint_begin", "checkpoint_end", "evaluate", "spike", "remedy", "end")
    assert told(NotificationRules(FACTS), *(event(kind, step=1) for kind in kinds)) == []


def test_one_message_of_a_kind_in_a_minute():
    """The next one says how many were left out; other kinds are not held back."""
    now = [0.0]
    limit = RateLimit(lambda: now[0])
    narrator = NotificationRules(FACTS)

    def restart() -> list[Notification]:
        return told(narrator, event("failure", cause="rank_killed"), event("restart", attempt=1))

    assert len(limit.passed(restart())) == 1
    for _ in range(3):
        assert limit.passed(restart()) == []
    assert [each.kind for each in limit.passed([*restart(), *narrator.end(SupervisorEnd(exit_code=1))])] == ["failure"]
    now[0] = INTERVAL_S
    (message,) = limit.passed(restart())
    assert message.omitted == 4
    assert "4 earlier messages" in message.text()


def test_example_of_dry_run_says_that_it_is_one():
    assert "an example" in sample(FACTS, TIME).text()
