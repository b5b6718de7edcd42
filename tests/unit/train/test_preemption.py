"""Stopping on a signal: what is saved, what is skipped, and what the checkpoint holds for the next start."""

from __future__ import annotations

import signal
from types import SimpleNamespace

import pytest
import torch
from transformers import TrainerControl
from transformers.trainer_callback import DefaultFlowCallback

from dsrun.runs.heartbeat import StopRequest
from dsrun.train.base.rank_context import PreemptionHandler
from dsrun.train.loop.preemption import PendingEvaluationCallback, PreemptionCallback, StopVote

EPOCHS = SimpleNamespace(
    eval_strategy="epoch",
    eval_delay=0,
    save_strategy="epoch",
    logging_strategy="steps",
    logging_first_step=False,
)


def stopping(*, requested):
    found = PreemptionHandler((signal.SIGUSR1,), None)
    found.request = StopRequest("SIGUSR1") if requested else None
    return found


def trainer_and_callback(*, requested, step=3, epoch=0.5):
    """A trainer of one rank that is told (or not) before `step` of 10, in epoch `epoch`."""
    handler = stopping(requested=requested)
    trainer = SimpleNamespace(
        interrupted=False, save_again=False, ranks_want_to_stop=requested, any_rank_stops=lambda: handler.is_requested
    )
    state = SimpleNamespace(global_step=step, max_steps=10, epoch=epoch, stateful_callbacks={}, logging_steps=100)
    return trainer, PreemptionCallback(trainer, handler), state


def due(state):
    return state.stateful_callbacks["dsrun"]["evaluation_due"]


@pytest.mark.parametrize("evaluates", [True, False])
def test_preemption_saves_step_and_defers_evaluation(evaluates):
    _trainer, leave, state = trainer_and_callback(requested=True)
    control = TrainerControl(should_evaluate=evaluates)
    leave.on_step_end(EPOCHS, state, control)
    assert (control.should_save, control.should_evaluate, due(state)) == (True, False, evaluates)
    # Not before the save, which stores the control.
    assert not control.should_training_stop
    leave.on_save(EPOCHS, state, control)
    assert control.should_training_stop


@pytest.mark.parametrize(("epoch", "expected"), [(1.0, True), (1.25, False)])
def test_preemption_at_epoch_end_leaves_evaluation_due(epoch, expected):
    """The evaluation after an epoch is due if this was its last step."""
    _trainer, leave, state = trainer_and_callback(requested=True, epoch=epoch)
    leave.on_step_end(EPOCHS, state, TrainerControl())
    assert due(state) is expected


def test_preemption_within_epoch_skips_its_evaluation():
    """An epoch left halfway does not end with an evaluation."""
    _trainer, leave, state = trainer_and_callback(requested=True)
    control = TrainerControl()
    leave.on_step_end(EPOCHS, state, control)
    DefaultFlowCallback().on_epoch_end(EPOCHS, state, control)
    assert control.should_evaluate
    leave.on_epoch_end(EPOCHS, state, control)
    assert not control.should_evaluate
    assert not control.should_save


def test_preemption_during_save_stops_after_it():
    trainer, leave, state = trainer_and_callback(requested=False)
    control = TrainerControl()
    leave.on_step_end(EPOCHS, state, control)
    assert not control.should_save
    leave.stopping.request = StopRequest("SIGUSR1")
    leave.on_save(EPOCHS, state, control)
    assert trainer.interrupted
    assert control.should_training_stop


def test_preemption_during_failed_save_saves_first():
    """There is no checkpoint yet to stop with."""
    trainer, leave, state = trainer_and_callback(requested=False)
    trainer.save_again = True
    leave.stopping.request = StopRequest("SIGUSR1")
    control = TrainerControl()
    leave.on_save(EPOCHS, state, control)
    assert not trainer.interrupted
    assert not control.should_training_stop


def test_preemption_at_last_step_ends_as_usual():
    trainer, leave, state = trainer_and_callback(requested=True, step=10)
    control = TrainerControl()
    leave.on_step_end(EPOCHS, state, control)
    leave.on_save(EPOCHS, state, control)
    assert not trainer.interrupted


@pytest.mark.parametrize("stored", [{}, {"dsrun": {"evaluation_due": False}}, {"dsrun": {"evaluation_due": True}}])
def test_resume_runs_pending_evaluation_first(stored):
    made = []
    trainer = SimpleNamespace(make_up_evaluation=lambda: made.append(1))
    state = SimpleNamespace(stateful_callbacks=dict(stored))
    for _ in range(2):
        PendingEvaluationCallback(trainer).on_train_begin(None, state, None)
    assert len(made) == (1 if stored.get("dsrun", {}).get("evaluation_due") else 0)


def test_stop_vote_only_with_preemption_signal():
    """A vote is held only where a signal may ask to stop."""
    silent = PreemptionHandler((), None)
    silent.request = StopRequest("x")
    assert not StopVote(silent, world_size=1, device=torch.device("cpu")).any_rank_requested()
    assert StopVote(stopping(requested=True), world_size=1, device=torch.device("cpu")).any_rank_requested()
    assert not StopVote(stopping(requested=False), world_size=1, device=torch.device("cpu")).newest()
