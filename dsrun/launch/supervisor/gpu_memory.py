"""Before a restart: waiting until the driver has given back the GPU memory of the ranks that have ended."""

import time
from collections.abc import Callable, Mapping

WAIT_S = 50.0
"""Seconds to wait at most: the driver takes seconds, after a fault longer. What is held then is somebody else's."""
_SLACK = 1 << 30  # bytes: contexts of monitoring tools, which come and go
_POLL_S = 0.5

MemoryUsed = Callable[[], Mapping[str, int]]
"""The bytes in use on each of the run's GPUs, by UUID; nothing without GPUs."""


class GpuMemory:
    """The memory of this machine's GPUs that was in use before the first attempt, and what is in use now."""

    def __init__(self, used: MemoryUsed) -> None:
        self._used = used
        self._before = used()

    def held(self) -> dict[str, int]:
        """The bytes of each GPU that are in use beyond what was before the run, where they are more than 1 GiB."""
        if not self._before:
            return {}
        now = self._used()
        more = {uuid: now.get(uuid, 0) - before for uuid, before in self._before.items()}
        return {uuid: size for uuid, size in more.items() if size > _SLACK}

    def wait_until_free(self, stop_wanted: Callable[[], bool], *, timeout_s: float = WAIT_S) -> dict[str, int]:
        """Wait until nothing is held, `timeout_s` seconds at most, or a stop is wanted; what is still held."""
        until = time.monotonic() + timeout_s
        while (held := self.held()) and time.monotonic() < until and not stop_wanted():
            time.sleep(_POLL_S)
        return held
