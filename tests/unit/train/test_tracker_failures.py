"""A tracker that fails does not end the run."""

from __future__ import annotations

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments
from transformers.integrations.integration_utils import MLflowCallback, TensorBoardCallback
from transformers.trainer_callback import CallbackHandler, ProgressCallback

from dsrun.train.loop.callbacks import GuardedTracker, guard_trackers


class Writer:
    """What TensorBoard's callback writes to; on a disk that is full from some line on."""

    def __init__(self, fails):
        self.fails = fails
        self.lines = []

    def add_scalar(self, name, value, step):
        if self.fails:
            raise OSError(28, "No space left on device")
        self.lines.append((name, value, step))

    def flush(self):
        pass


@pytest.fixture
def log(tmp_path):
    def run(writer):
        notices = []
        handler = CallbackHandler([TensorBoardCallback(writer), ProgressCallback()], None, None, None, None)
        guard_trackers(handler, notices.append)
        assert [type(each) for each in handler.callbacks] == [GuardedTracker, ProgressCallback]
        arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none")
        state = TrainerState(is_world_process_zero=True)
        for loss in (1.0, 2.0):
            handler.callbacks[0].on_log(arguments, state, TrainerControl(), logs={"loss": loss})
        return notices

    return run


def test_tracker_gets_every_line(log):
    writer = Writer(fails=False)
    assert log(writer) == []
    assert [value for _, value, _ in writer.lines] == [1.0, 2.0]


def test_failing_tracker_reported_once_and_left_out(log):
    (notice,) = log(Writer(fails=True))
    assert notice.startswith("tensorboard failed and is left out from here on: OSError: ")
    assert "No space left on device" in notice


def test_every_event_is_guarded():
    """Also those that are called on a tracker that was set up late."""
    broken = MLflowCallback.__new__(MLflowCallback)
    broken._auto_end_run = False  # what it looks at when it is deleted
    notices = []
    tracker = GuardedTracker("mlflow", broken, notices.append)
    assert tracker.on_train_begin(None, None, None) is None
    assert tracker.on_train_end(None, None, None) is None
    assert len(notices) == 1
