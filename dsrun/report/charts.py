"""Panels -> charts of a page: an SVG that stretches with the page, and around it the ticks, which stay legible.

An SVG that keeps its proportions would shrink its text on a narrow page. So curves are drawn in a space of
WIDTH × HEIGHT that the browser stretches, with lines that keep their width, and texts are HTML, placed by shares.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any

from dsrun.report.axes import ChartAxis, linear_axis, log_axis, step_axis
from dsrun.report.panels import PanelCurve, ReportPanel
from dsrun.report.series import SeriesPoint, finite_values
from dsrun.system.terminal.display import figure

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
