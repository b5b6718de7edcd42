"""How late messages have come lately, so that a busy machine is not taken for a lost one."""

from collections import deque

_REMEMBERED_S = 600.0


class RecentDelays:
    """The delays of the last minutes, in seconds by CLOCK_MONOTONIC."""

    def __init__(self) -> None:
        self._delays: deque[tuple[float, float]] = deque()

    def add(self, now: float, seconds: float) -> None:
        """One that ended at `now`. Those that are both older and shorter tell nothing any more."""
        while self._delays and self._delays[-1][1] <= seconds:
            self._delays.pop()
        self._delays.append((now, seconds))

    def longest(self, now: float) -> float:
        """The longest one, 0 for none."""
        while self._delays and now - self._delays[0][0] > _REMEMBERED_S:
            self._delays.popleft()
        return self._delays[0][1] if self._delays else 0.0
