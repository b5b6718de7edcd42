"""Axes: where a value stands between the ends of its axis, the ticks, and how they are written."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
# Below it a tick is written with an exponent: 2e-4.
_SMALL = 1e-3
_LARGE = 1e4
_HUGE = 1e15


@dataclass(frozen=True)
class ChartAxis:
    """An axis from `low` to `high`, which differ; on a logarithmic one both are positive."""

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def place(self, value: float) -> float:
        """Where a value stands: 0 at the low end, 1 at the high one; beyond them it is held at the end."""
        if self.log:
            share = (math.log10(value) - math.log10(self.low)) / (math.log10(self.high) - math.log10(self.low))
        else:
            # Halves: the difference of two huge values may be infinite.
            share = (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)
        return min(1.0, max(0.0, share))

    def labels(self) -> tuple[str, ...]:
        """The ticks as they are written."""
        return tuple(map(_log_label, self.ticks)) if self.log else tick_labels(self.ticks)


def linear_axis(low: float, high: float, *, zero: bool = False, most: float | None = None, count: int = 5) -> ChartAxis:
    """An axis with about `count` ticks whose ends are ticks; `zero`: it begins there, or ends there. It is below 0 only
    where a value is, and of values that can be `most` it shows a tenth of that at least."""
    if zero:
        low, high = min(low, 0.0), max(high, (most or 0.0) / 10)
    if not high / 2 - low / 2 > 1e-12 * max(abs(low), abs(high)):
        spread = abs(low) / 10 or 1.0
        low, high = (low, low + spread) if zero or low == 0 else (low - spread, high + spread)
    step = nice_step(low, high, count)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(number * step for number in range(first, last + 1))
    return ChartAxis(ticks[0], ticks[-1], ticks)


def step_axis(low: int, high: int, *, count: int = 6) -> ChartAxis:
    """An axis of optimizer steps from the first to the last one, with ticks at round whole numbers between them."""
    high = max(high, low + 1)
    step = max(1, round(nice_step(low, high, count)))
    ticks = range(-(-low // step) * step, high + 1, step)
    return ChartAxis(low, high, tuple(float(tick) for tick in ticks))


def log_axis(low: float, high: float) -> ChartAxis:
    """A logarithmic axis: ticks at powers of ten, with 2 and 5 between them where they are few. `low` is positive."""
    low, high = (low, high) if high > low * 1.02 else (low / 2, high * 2)
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    decades = last - first
    factors = (1, 2, 5) if decades <= 3 else (1,)
    stride = max(1, -(-decades // 6))
    ticks = [factor * 10.0**power for power in range(first, last + 1, stride) for factor in factors]
    # The ends are the ticks around the values, not whole decades.
    begin = max((tick for tick in ticks if tick <= low * (1 + 1e-9)), default=low)
    end = min((tick for tick in ticks if tick >= high * (1 - 1e-9)), default=high)
    return ChartAxis(begin, end, tuple(tick for tick in ticks if begin <= tick <= end), log=True)


def nice_step(low: float, high: float, count: int) -> float:
    """The distance of about `count` ticks between the two: 1, 2, 2.5 or 5 times a power of ten."""
    raw = high / count - low / count
    power = 10.0 ** math.floor(math.log10(raw))
    return next(power * step for step in _STEPS if power * step >= raw * (1 - 1e-9))


def tick_labels(ticks: Sequence[float]) -> tuple[str, ...]:
    """Ticks at equal distances, written alike: 0.5 and 1.0, 20k and 40k, 1e-4 and 2e-4."""
    largest = max((abs(tick) for tick in ticks), default=0.0)
    distance = abs(ticks[1] - ticks[0]) if len(ticks) > 1 else largest or 1.0
    ticks = [0.0 if abs(tick) < distance * 1e-6 else tick for tick in ticks]
    if largest >= _HUGE or 0 < largest < _SMALL:
        return tuple(_exponent(tick) if tick else "0" for tick in ticks)
    size, prefix = next((each for each in _PREFIXES if largest >= max(each[0], _LARGE)), (1.0, ""))
    # So many after the point tell two ticks at this distance apart.
    apart = distance / size
    digits = next((each for each in range(7) if abs(round(apart, each) - apart) < apart * 1e-6), 6)
    return tuple(f"{tick / size:,.{digits}f}{prefix}" if tick else "0" for tick in ticks)


def _log_label(value: float) -> str:
    """A tick of a logarithmic axis, written as short as it can be: 0.05, 200, 50k, 1e-6."""
    if not 1e-3 <= value < _HUGE:
        return _exponent(value)
    size, prefix = next((each for each in _PREFIXES if value >= max(each[0], _LARGE)), (1.0, ""))
    return f"{value / size:,.10g}{prefix}"


def _exponent(value: float) -> str:
    mantissa, _, power = f"{value:.2e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(power)}"
