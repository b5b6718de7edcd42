"""Where a rank's steps spend their time, with the callbacks called as the Trainer does."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch
from torch.distributed.distributed_c10d import Work

from dsrun.runs.heartbeat import HeartbeatWriter, RankHeartbeat, read_beats
from dsrun.train.loop.step_times import REMEMBERED, WARM_UP, DeviceClock, StepTimes


@pytest.fixture
def clock(monkeypatch):
    """A clock that only `advance` moves."""
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def advance(seconds: float) -> None:
        now[0] += seconds

    return advance


@pytest.fixture
def waits(monkeypatch, clock):
    """Have `Work.wait` take so many seconds."""
    monkeypatch.setattr(Work, "wait", clock)


def one_step(times: StepTimes, clock, *, data: float, compute: float, wait: float, model=None) -> None:
    def batches() -> Iterator[str]:
        clock(data)
        yield "batch"

    assert times.fetch(batches(), 4) == ["batch"]
    if model is None and wait:
        Work.wait(wait)
    times.on_step_begin(None, None, None)
    clock(compute)
    if model is not None:
        times.enter_forward()
        clock(wait / 2)
        model(torch.ones(1)).backward()
        clock(wait / 2)
    times.on_pre_optimizer_step(None, None, None)
    times.on_step_end(None, None, None)


@pytest.mark.usefixtures("waits")
def test_step_is_data_compute_and_wait(clock):
    """Work.wait is what blocks for other ranks, under DeepSpeed too. The first steps do not count."""
    times = StepTimes("cpu", 2, ddp=False)
    times.on_train_begin(None, None, None, model=torch.nn.Linear(1, 1))
    for _ in range(WARM_UP):
        assert times.recent() == {}
        one_step(times, clock, data=50.0, compute=50.0, wait=0.0)
    one_step(times, clock, data=1.0, compute=2.0, wait=4.0)
    assert times.recent() == {"step_s": 7.0, "data_s": 1.0, "compute_s": 2.0, "wait_s": 4.0}


@pytest.mark.usefixtures("waits")
def test_ddp_waits_before_forward_and_after_the_last_gradient(clock):
    """In C++, where no wait can be seen: for rank 0's buffers, and for the sum of the gradients."""
    model = torch.nn.Linear(1, 1)
    times = StepTimes("cpu", 2, ddp=True)
    times.on_train_begin(None, None, None, model=model)
    for _ in range(WARM_UP + 1):
        one_step(times, clock, data=1.0, compute=2.0, wait=4.0, model=model)
    assert times.recent() == {"step_s": 7.0, "data_s": 1.0, "compute_s": 2.0, "wait_s": 4.0}
    times.on_train_end(None, None, None)
    assert not model._forward_pre_hooks


@pytest.mark.usefixtures("waits")
def test_saves_and_evaluations_are_no_part_of_a_step(clock):
    times = StepTimes("cpu", 2, ddp=False)
    times.on_train_begin(None, None, None)
    for _ in range(WARM_UP + 1):
        one_step(times, clock, data=1.0, compute=1.0, wait=0.0)
        Work.wait(30.0)
        times.on_evaluate(None, None, None)
        clock(30.0)
        times.on_save(None, None, None)
    assert times.recent()["step_s"] == 2.0


def test_whole_window_has_quartile(clock, tmp_path):
    """It reaches the supervisor in the heartbeat; steps before the window do not count."""
    times = StepTimes("cpu", 1, ddp=False)
    times.on_train_begin(None, None, None)
    for number in range(WARM_UP + REMEMBERED):
        compute = 1.0 if number % 3 else 5.0
        one_step(times, clock, data=0.5, compute=compute, wait=0.0)
        assert ("own_low_s" in times.recent()) == (number == WARM_UP + REMEMBERED - 1)
    HeartbeatWriter(tmp_path, 0).step(40, times.recent())
    beat = read_beats(tmp_path)[0]
    assert isinstance(beat, RankHeartbeat)
    assert (beat.compute_s, beat.own_low_s, beat.stalls) == (1.0, 1.5, 0)


def test_steps_that_stall_are_counted_from_a_whole_window_on(clock):
    """A stall is many times the usual step, and seconds more; a slow rank has none."""
    times = StepTimes("cpu", 1, ddp=False)
    times.on_train_begin(None, None, None)
    for _ in range(WARM_UP):
        one_step(times, clock, data=0.5, compute=90.0, wait=0.0)
    for _ in range(REMEMBERED):
        one_step(times, clock, data=0.5, compute=1.0, wait=0.0)
    for compute in (2.0, 6.5, 9.5, 1.0, 21.0):
        one_step(times, clock, data=0.5, compute=compute, wait=0.0)
    assert (times.recent()["stalls"], times.recent()["stalled_s"]) == (2, 8.5 + 20.0)


class RecordedEvent:
    """A CUDA event on a device that has always done its work; as the real one it wants both times to be recorded."""

    clock = 0.0

    def __init__(self, enable_timing):
        assert enable_timing
        self.time = None

    def record(self):
        self.time = RecordedEvent.clock

    def query(self):
        return True

    def elapsed_time(self, end):
        if self.time is None or end.time is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return 1000 * (end.time - self.time)


def test_step_whose_end_the_device_never_sees_is_left_out(monkeypatch):
    """As where the first parameter gets no gradient: training must go on without that time."""
    monkeypatch.setattr(torch.cuda, "Event", RecordedEvent)
    monkeypatch.setattr(RecordedEvent, "clock", 0.0)
    clock = DeviceClock()
    assert list(clock.finished()) == []
    clock.begin()
    assert list(clock.finished()) == []
    clock.begin()
    clock.end()
    RecordedEvent.clock = 2.0
    clock.end()  # of the last micro batch
    assert list(clock.finished()) == [2.0]
