"""Panels -> charts of a page: an SVG that stretches with the page, and around it the ticks, which stay legible.

An SVG that keeps its proportions would shrink its text on a narrow page. So curves are drawn in a space of
WIDTH × HEIGHT that the browser stretches, with lines that keep their width, and texts are HTML, placed by shares."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any

from dsrun.report.panels import PanelCurve, ReportPanel, SeriesPoint, finite_values
from dsrun.system.terminal.display import figure

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


WIDTH = 1000
HEIGHT = 300
COLOURS = 8
"""So many colours page.css has; further curves are dashed."""
_TICK = 10
_BADS = 100


@dataclass(frozen=True)
class ChartView:
    """One way to draw a panel: the SVG, and the ticks of its y axis as (share from below, text)."""

    scale: str
    svg: str
    ticks: tuple[tuple[float, str], ...]


@dataclass(frozen=True, kw_only=True)
class PanelChart:
    """A panel as the page shows it. `x_ticks` are (share from the left, text), `y_width` the length of the longest tick
    in characters; `data` is what its values are looked up in."""

    panel: ReportPanel
    views: tuple[ChartView, ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_width: int
    marks: frozenset[str]
    data: dict[str, Any]


def chart(panel: ReportPanel) -> PanelChart:
    """The chart of a panel that is drawn."""
    steps = [step for curve in panel.curves for step, _ in curve.points]
    x = step_axis(min(steps), max(steps))
    scales = ("log", "linear") if panel.log else ("linear", "log")
    views = tuple(_view(panel, scale, x) for scale in (scales if panel.both else ("linear",)))
    bad = any(not math.isfinite(value) for curve in panel.curves for _, value in curve.points)
    return PanelChart(
        panel=panel,
        views=views,
        x_ticks=tuple((x.place(tick), text) for tick, text in zip(x.ticks, x.labels(), strict=True)),
        y_width=max(len(text) for view in views for _, text in view.ticks),
        marks=frozenset({*(mark.kind for mark in panel.marks), *(["nonfinite"] if bad else [])}),
        data=_data(panel, x),
    )


def y_axis(panel: ReportPanel, scale: str) -> ChartAxis:
    """The y axis around all finite values of a panel; of a logarithmic one, around those above zero."""
    values = finite_values(point for curve in panel.curves for point in curve.points)
    if scale == "log":
        values = [value for value in values if value > 0]
        return log_axis(min(values), max(values))
    return linear_axis(min(values), max(values), zero=panel.zero, most=panel.most)


def path(points: Iterable[SeriesPoint], x: ChartAxis, y: ChartAxis) -> str:
    """The `d` of a line through the points, broken where a value is not finite or not on a logarithmic axis."""
    runs: list[list[tuple[float, float]]] = [[]]
    for step, value in points:
        if math.isfinite(value) and (not y.log or value > 0):
            runs[-1].append((WIDTH * x.place(step), HEIGHT * (1 - y.place(value))))
        elif runs[-1]:
            runs.append([])
    # A point alone is a line of no length, which round ends make a dot.
    return "".join(_line(each) if len(each) > 1 else _dot(*each[0]) for each in runs if each)


def _line(run: Sequence[tuple[float, float]]) -> str:
    """Absolute, then relative: half as long. Differences of what was rounded do not add up to an error."""
    rounded = [(round(left, 1), round(top, 1)) for left, top in run]
    moves = (f"{_short(b[0] - a[0])} {_short(b[1] - a[1])}" for a, b in pairwise(rounded))
    return f"M{_short(rounded[0][0])} {_short(rounded[0][1])}l{' '.join(moves)}"


def _dot(left: float, top: float) -> str:
    return f"M{_short(left)} {_short(top)}h0"


def _short(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0").replace("-0.", "-.").replace("-.0", "0") or "0"


def _view(panel: ReportPanel, scale: str, x: ChartAxis) -> ChartView:
    y = y_axis(panel, scale)
    ticks = tuple((y.place(tick), text) for tick, text in zip(y.ticks, y.labels(), strict=True))
    grid = "".join(f"M0 {_short(HEIGHT * (1 - share))}h{WIDTH}" for share, _ in ticks)
    body = [
        f'<path class="grid" d="{grid}"/>',
        *_marks(panel, x),
        *(part for curve in panel.curves for part in _drawn(curve, x, y)),
    ]
    label = escape(_summary(panel))
    svg = (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{label}">'
        + "".join(body)
        + "</svg>"
    )
    return ChartView(scale, svg, ticks)


def _drawn(curve: PanelCurve, x: ChartAxis, y: ChartAxis) -> list[str]:
    look = f"c{curve.colour % COLOURS} d{curve.colour // COLOURS % 3}"
    line = path(curve.points, x, y)
    if curve.dots:
        places = ((WIDTH * x.place(step), HEIGHT * (1 - y.place(value))) for step, value in curve.points
                  if math.isfinite(value) and (not y.log or value > 0))  # fmt: skip
        parts = [
            f'<path class="line thin {look}" d="{line}"/>',
            f'<path class="dots {look}" d="{"".join(_dot(*at) for at in places)}"/>',
        ]
    elif curve.mean:
        mean = path(curve.mean, x, y)
        parts = [f'<path class="line faint {look}" d="{line}"/>', f'<path class="line {look}" d="{mean}"/>']
    else:
        parts = [f'<path class="line {look}" d="{line}"/>']
    for step, value in [each for each in curve.points if not math.isfinite(each[1])][:_BADS]:
        at, title = _short(WIDTH * x.place(step)), escape(f"step {step:,}: {curve.label} is {figure(value)}")
        parts.append(f'<path class="nonfinite" d="M{at} 0v{_TICK}"><title>{title}</title></path>')
    return parts


def _marks(panel: ReportPanel, x: ChartAxis) -> list[str]:
    lines = {"restart": f"0v{HEIGHT}", "checkpoint": f"{HEIGHT}v-{_TICK}", "nonfinite": f"0v{_TICK}"}
    return [
        f'<path class="{mark.kind}" d="M{_short(WIDTH * x.place(mark.step))} {lines[mark.kind]}">'
        f"<title>{escape(mark.label)}</title></path>"
        for mark in panel.marks
        if x.low <= mark.step <= x.high
    ]


def _summary(panel: ReportPanel) -> str:
    """The chart in a sentence, for who cannot see it."""
    unit = f" {panel.unit}" if panel.unit else ""
    parts = []
    for curve in panel.curves[:COLOURS]:
        finite = [(step, value) for step, value in curve.points if math.isfinite(value)]
        if finite:
            (first, begin), (last, end) = finite[0], finite[-1]
            parts.append(f"{curve.label} {figure(begin)}{unit} at step {first:,}, {figure(end)}{unit} at step {last:,}")
    return f"{panel.title}: {'; '.join(parts)}"


def _data(panel: ReportPanel, x: ChartAxis) -> dict[str, Any]:
    """What the page's script looks values up in: the ends of the x axis and the points, values as they are shown."""
    curves = [
        {
            "label": curve.label,
            "colour": curve.colour % COLOURS,
            "steps": [step for step, _ in curve.points],
            "values": [float(f"{value:.5g}") if math.isfinite(value) else None for _, value in curve.points],
        }
        for curve in panel.curves
    ]
    return {"low": x.low, "high": x.high, "unit": panel.unit, "curves": curves}
