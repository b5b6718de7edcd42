"""Where a rank's steps spend their time: in data, in computing, and in waiting for other ranks.

No collective operation is added. On the CPU ranks block in Python while they wait, in `Work.wait`; DDP waits in C++
before the forward pass and at the end of the backward pass. On a GPU nothing blocks in Python, so computing is what
lies on the device between the sum that all ranks form at the beginning of a step and the first parameter's gradient,
which comes last. (Under ZeRO-3 this includes the gathering of parameters.)"""

import itertools
import math
import statistics
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.distributed_c10d import Work
from transformers import TrainerCallback

from dsrun.runs.heartbeat import STALL_S, STALL_TIMES

REMEMBERED = 30
"""Steps of which the medians are taken."""
# The first steps compile, tune and fill caches.
WARM_UP = 2
_LOW = 0.25


class DeviceClock:
    """Seconds between two places in the device's queue of work, read when the device has passed them."""

    def __init__(self) -> None:
        self._begin: Any = None
        self._end: Any = None
        self._pending: deque[tuple[Any, Any]] = deque(maxlen=REMEMBERED)

    @staticmethod
    def _recorded() -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def begin(self) -> None:
        self._begin, self._end = self._recorded(), None

    def end(self) -> None:
        """The last call of a step counts."""
        self._end = self._recorded()

    def finished(self) -> Iterator[float]:
        """Seconds of this step, or of earlier ones that the device has done by now; nothing is waited for. A step
        without a beginning or an end, such as one that gave the first parameter no gradient, is left out."""
        if self._begin is not None and self._end is not None:
            self._pending.append((self._begin, self._end))
        while self._pending and self._pending[0][1].query():
            begin, end = self._pending.popleft()
            yield begin.elapsed_time(end) / 1000


class StepTimes(TrainerCallback):
    """The times of the last steps of this rank. `recent` goes into its heartbeats.

    A step lasts from the end of the one before; evaluations and saves in between do not count."""

    def __init__(self, device: str, world_size: int, *, ddp: bool) -> None:
        self._device = DeviceClock() if device == "cuda" else None
        self._is_ddp = ddp and world_size > 1 and device != "cuda"
        if world_size > 1 and device != "cuda":
            self._count_waits()
        self._windows = {name: deque[float](maxlen=REMEMBERED) for name in ("step", "data", "compute", "wait")}
        self._steps = self._stalls = 0
        self._stalled_s = 0.0
        self._began: float | None = None
        self._data = self._waited = 0.0
        self._blocked_since: float | None = None
        self._hooks: list[Any] = []

    def _count_waits(self) -> None:
        """Have the seconds that this process is blocked in `Work.wait` count as waited."""
        # A class of pybind11's, whose attribute may be replaced; c10d's own Python functions call it by this name.
        wait = Work.wait

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return wait(*args, **kwargs)
            finally:
                self._waited += time.perf_counter() - began

        Work.wait = timed

    def fetch(self, batches: Iterator[Any], count: int) -> list[Any]:
        """The next `count` of `batches`, whose time counts as data."""
        began = time.perf_counter()
        found = list(itertools.islice(batches, count))
        self._data += time.perf_counter() - began
        return found

    def recent(self) -> dict[str, float]:
        """Median seconds of the last steps by the names of `RankHeartbeat` (dsrun.runs); {} before there are any.

        With a whole window also `own_low_s`, which three quarters of the steps exceeded in data and computing, and the
        `stalls` so far with their `stalled_s`."""
        if not all(self._windows.values()):
            return {}
        found = {f"{name}_s": statistics.median(values) for name, values in self._windows.items()}
        if len(self._windows["compute"]) == REMEMBERED:
            own = sorted(self._own())
            found |= {"own_low_s": own[math.floor(_LOW * len(own))]}
            found |= {"stalls": self._stalls, "stalled_s": self._stalled_s}
        return {name: round(seconds, 6) for name, seconds in found.items()}

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self._restart()
        if self._device is None and not self._is_ddp:
            return
        first = next((each for each in model.parameters() if each.requires_grad), None)
        if first is not None:
            self._hooks.append(first.register_post_accumulate_grad_hook(self._gradients_done))
        if self._is_ddp:
            self._hooks.append(model.register_forward_pre_hook(lambda *_: self._unblock()))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def enter_forward(self) -> None:
        """The model is about to be called. DDP first broadcasts rank 0's buffers, which waits."""
        self._blocked_since = time.perf_counter() if self._is_ddp else None

    def _gradients_done(self, _parameter: Any) -> None:
        if self._device is not None:
            self._device.end()
        else:
            self._blocked_since = time.perf_counter()

    def _unblock(self) -> None:
        if self._blocked_since is not None:
            self._waited += time.perf_counter() - self._blocked_since
            self._blocked_since = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._device is not None:
            self._device.begin()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._unblock()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._began is not None and self._steps >= WARM_UP:
            self._add(time.perf_counter() - self._began)
        self._steps += 1
        self._restart()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._restart()

    on_evaluate = on_save

    def _restart(self) -> None:
        self._began = time.perf_counter()
        self._data, self._waited = 0.0, 0.0

    def _add(self, step: float) -> None:
        data = min(self._data, step)
        if self._device is None:
            waited = self._waited
            known = {"compute": [max(0.0, step - data - waited)], "wait": [waited]}
        else:
            # Batches that are fetched while the device computes hold nobody up.
            computed = [min(seconds, step - data) for seconds in self._device.finished()]
            known = {"compute": computed, "wait": [step - data - seconds for seconds in computed[-1:]]}
        for computed_s in known["compute"]:
            self._note_stall(data + computed_s)
        for name, values in {"step": [step], "data": [data], **known}.items():
            self._windows[name] += values

    def _own(self) -> list[float]:
        """Seconds of the last steps in data and computing."""
        return list(map(sum, zip(self._windows["data"], self._windows["compute"], strict=True)))

    def _note_stall(self, own: float) -> None:
        if len(self._windows["compute"]) < REMEMBERED:
            return
        usual = statistics.median(self._own())
        if own > max(STALL_TIMES * usual, usual + STALL_S):
            self._stalls += 1
            self._stalled_s += own - usual
