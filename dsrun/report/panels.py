"""What the charts of a report show: panels of curves over the optimizer steps, of one run or of several. Their values
are read, made fewer, and smoothed; one that is not finite is a gap."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast, get_args

from dsrun.datafiles import toml_beside
from dsrun.events import kind_of
from dsrun.monitoring.event_text import filled
from dsrun.runs.reader import RunHistory, metric_keys
from dsrun.runs.records import LedgerRecord, whole
from dsrun.system.terminal.display import printable
from dsrun.system.terminal.secrets import without_tokens

SeriesPoint = tuple[int, float]
# The running mean is over about this share of the curve.
_SPAN = 0.015
_LARGEST = 1e300
_LAST_STEP = 10**15


def points_of(records: Iterable[LedgerRecord], key: str, divisor: float = 1.0) -> tuple[SeriesPoint, ...]:
    """(step, value) of the records with a number under `key`, also one that is not finite. A value that no axis can
    hold counts as infinite, and one too small for it as 0."""
    found = []
    for record in records:
        step, value = whole(record.get("step")), record.get(key)
        if step is None or not 0 <= step <= _LAST_STEP:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        if isinstance(value, int) and abs(value) > _LARGEST:
            value = math.inf if value > 0 else -math.inf
        value = value / divisor
        value = math.copysign(math.inf, value) if abs(value) > _LARGEST else value
        found.append((step, 0.0 if abs(value) < 1 / _LARGEST else float(value)))
    return tuple(found)


def thinned(points: Sequence[SeriesPoint], limit: int) -> tuple[SeriesPoint, ...]:
    """At most about `limit` of the points: of each stretch of steps the least and the greatest value and the first one
    that is not finite, so that peaks and gaps stay. First and last point stay, too."""
    if len(points) <= limit:
        return tuple(points)
    stretches = max(1, limit // 2)
    kept: list[SeriesPoint] = [points[0]]
    for number in range(stretches):
        stretch = range(number * len(points) // stretches, (number + 1) * len(points) // stretches)
        finite = [index for index in stretch if math.isfinite(points[index][1])]
        chosen = {next((index for index in stretch if not math.isfinite(points[index][1])), -1)}
        if finite:
            chosen |= {min(finite, key=lambda each: points[each][1]), max(finite, key=lambda each: points[each][1])}
        kept += [points[index] for index in sorted(chosen) if index > 0]
    return tuple(kept if kept[-1] == points[-1] else [*kept, points[-1]])


def smoothed(points: Sequence[SeriesPoint]) -> tuple[SeriesPoint, ...]:
    """The running mean of a curve, over as many points before each one as after it, so that it does not lag behind;
    none across a gap."""
    reach = max(2, round(_SPAN * len(points) / 2))
    sums, gaps = [0.0], [0]
    for _, value in points:
        sums.append(sums[-1] + (value if math.isfinite(value) else 0.0))
        gaps.append(gaps[-1] + (not math.isfinite(value)))
    found = []
    for index, (step, value) in enumerate(points):
        # Narrower at the ends, where a curve falls or rises most, and beside a gap.
        side = max(min(reach, index, len(points) - 1 - index), reach // 4)
        begin, end = max(0, index - side), min(len(points), index + side + 1)
        while gaps[end] - gaps[begin] and end - begin > 1:
            begin, end = index - (index - begin) // 2, index + 1 + (end - index - 1) // 2
        found.append((step, (sums[end] - sums[begin]) / (end - begin) if math.isfinite(value) else value))
    return tuple(found)


def finite_values(points: Iterable[SeriesPoint]) -> list[float]:
    """The values without the gaps."""
    return [value for _, value in points if math.isfinite(value)]


MOST_POINTS = 1000
"""Of a curve; with many curves each has fewer, so that the page stays small."""
_ALL_POINTS = 24_000
_FEWEST_POINTS = 100
_MOST_MARKS = 200
# From so many points on, a curve is drawn faintly, under its running mean.
_SMOOTHED = 150
FEWEST_DRAWN = 3
"""Of fewer points a line tells nothing that a table does not."""


@dataclass(frozen=True, kw_only=True)
class PanelCurve:
    """A curve: `run` counts the runs of the report; `colour` and `dots` say how it is drawn, `key` is that of
    metrics.jsonl. `mean` is its running mean, where it has enough points for one."""

    label: str
    key: str
    run: int
    colour: int
    points: tuple[SeriesPoint, ...]
    mean: tuple[SeriesPoint, ...] = ()
    dots: bool = False

    def as_dict(self) -> dict[str, Any]:
        """The curve for JSON: [step, value] pairs, null where a value is not finite."""
        points = [[step, value if math.isfinite(value) else None] for step, value in self.points]
        return {"label": self.label, "key": self.key, "run": self.run, "points": points}


MarkKind = Literal["restart", "nonfinite", "checkpoint"]


@dataclass(frozen=True, kw_only=True)
class PanelMark:
    """Something that happened at a step."""

    step: int
    kind: MarkKind
    label: str


@dataclass(frozen=True)
class ReportPanel:
    """One chart. `zero`: its axis begins at 0; `most`: it ends there at the latest; `log`: the first view is
    logarithmic; `both`: the other one is there too; `steady`: its values are set or held, and have no running mean."""

    name: str
    title: str
    unit: str
    curves: tuple[PanelCurve, ...] = ()
    marks: tuple[PanelMark, ...] = ()
    zero: bool = False
    most: float | None = None
    log: bool = False
    both: bool = False
    steady: bool = False

    @property
    def is_drawn(self) -> bool:
        """Whether one of its curves has enough points for a chart; else they stand in a table."""
        return any(len(finite_values(curve.points)) >= FEWEST_DRAWN for curve in self.curves)

    def as_dict(self) -> dict[str, Any]:
        """The panel for JSON."""
        curves = [curve.as_dict() for curve in self.curves]
        marks = [{"step": mark.step, "kind": mark.kind, "label": mark.label} for mark in self.marks]
        return {"name": self.name, "title": self.title, "unit": self.unit, "curves": curves, "marks": marks}


@dataclass(frozen=True)
class _Plan(ReportPanel):
    """A panel to be: its keys, each with its name in the legend, and what its values are divided by."""

    keys: Mapping[str, str] = field(kw_only=True)
    divisor: float = 1.0


_TABLE = toml_beside(__file__)
_PLANS = tuple(_Plan(**row) for row in _TABLE["panels"])


def shown_text(text: str) -> str:
    """Foreign text as a report may show it: without control characters and access tokens."""
    return without_tokens(printable(text, keep="\t\n"))


def panels(histories: Sequence[RunHistory], names: Sequence[str]) -> tuple[ReportPanel, ...]:
    """The panels of these runs, called `names`; those of keys that no run has are left out."""
    plans = [*_PLANS, *_prefixed(histories), *_metrics(histories)]
    several = len(histories) > 1
    found = [panel for plan in plans if _values((panel := _panel(plan, histories, names)).curves)]
    count = sum(len(panel.curves) for panel in found)
    limit = max(_FEWEST_POINTS, min(MOST_POINTS, _ALL_POINTS // max(1, count)))
    marks = () if several or not histories else _marks(histories[0])
    # Checkpoints are marked once, in the chart of the loss, which has the room.
    other_marks = tuple(mark for mark in marks if mark.kind != "checkpoint")
    return tuple(
        replace(
            panel,
            marks=marks if panel.name == "loss" else other_marks,
            curves=tuple(_thinner(each, limit, is_smooth=not panel.steady) for each in panel.curves),
        )
        for panel in found
    )


def _thinner(curve: PanelCurve, limit: int, *, is_smooth: bool) -> PanelCurve:
    """With at most so many points; the running mean is that of all."""
    has_mean = len(curve.points) >= _SMOOTHED and not curve.dots and is_smooth
    mean = thinned(smoothed(curve.points), limit // 2) if has_mean else ()
    return replace(curve, points=thinned(curve.points, limit), mean=mean)


def _panel(plan: _Plan, histories: Sequence[RunHistory], names: Sequence[str]) -> ReportPanel:
    curves: list[PanelCurve] = []
    for number, (history, name) in enumerate(zip(histories, names, strict=True)):
        drawn = 0
        for key, label in plan.keys.items():
            dots = key.startswith("eval_")
            points = points_of(history.evaluations if dots else history.steps, key, plan.divisor)
            if not points or (len(histories) > 1 and key not in _TABLE["only"].get(plan.name, plan.keys)):
                continue
            in_run = f"{name}, {label}" if len(plan.keys) > 1 else name
            shown, colour = (label, drawn) if len(histories) == 1 else (in_run, number)
            curves.append(
                PanelCurve(label=shown_text(shown), key=key, run=number, colour=colour, points=points, dots=dots)
            )
            drawn += 1
    is_log, may_be_log = plan.both and _spans_decades(curves), plan.both and _may_be_log(curves)
    return replace(plan, title=shown_text(plan.title), curves=tuple(curves), log=is_log, both=may_be_log)


def _values(curves: Iterable[PanelCurve]) -> list[float]:
    return finite_values(point for curve in curves for point in curve.points)


def _may_be_log(curves: Iterable[PanelCurve]) -> bool:
    """Whether a logarithmic axis shows the values, at most zeros excepted, and tells more than a linear one."""
    values = _values(curves)
    positive = [value for value in values if value > 0]
    return bool(positive) and min(values) >= 0 and max(positive) >= 2 * min(positive)


def _spans_decades(curves: Iterable[PanelCurve]) -> bool:
    """Whether nearly all values, single outliers aside, are more than three decades apart."""
    values = sorted(_values(curves))
    aside = len(values) // 50
    return bool(values) and values[0] > 0 and values[-1 - aside] >= 1000 * values[aside]


def _prefixed(histories: Sequence[RunHistory]) -> list[_Plan]:
    keys = {key: None for history in histories for record in history.steps[-1:] for key in record}
    return [
        _Plan(f"{prefix[:-1]}_each", title, "", keys=named)
        for prefix, title in _TABLE["prefixes"].items()
        if (named := {key: key.removeprefix(prefix) for key in keys if key.startswith(prefix)})
    ]


def _metrics(histories: Sequence[RunHistory]) -> list[_Plan]:
    keys = metric_keys(record for history in histories for record in history.evaluations)
    own = not any(history.program for history in histories)
    plans = []
    for key in (each for each in keys if each != "eval_loss"):
        values = finite_values(point for history in histories for point in points_of(history.evaluations, key))
        most, name = largest_possible(key, values, own=own), measure_name(key)
        plans.append(_Plan(key, name, "", keys={key: name}, zero=most is not None, most=most))
    return plans


def _marks(history: RunHistory) -> tuple[PanelMark, ...]:
    """The restarts of a run at the steps that they went back to, its checkpoints, and steps that were skipped as not
    finite."""
    found: dict[str, dict[int, PanelMark]] = {name: {} for name in get_args(MarkKind)}
    trained = False
    for event in history.events:
        kind, step = kind_of(event), whole(event.get("step"))
        if kind.mark and step is not None and (trained or kind.mark != "restart"):
            mark = PanelMark(step=step, kind=cast(MarkKind, kind.mark), label=shown_text(filled(kind.label, event)))
            found[kind.mark][step] = mark
        trained = trained or kind.name == "training"
    return tuple(
        marks[step] for marks in found.values() for step in sorted(marks)[:: max(1, -(-len(marks) // _MOST_MARKS))]
    )


_NAMES = {"bleu": "BLEU", "chrf": "chrF"} | {f"rouge{each}": f"ROUGE-{each}" for each in ("1", "2", "L", "Lsum")}
# What dsrun's own training logs in percent; others log it as a share, too.
_PERCENT = frozenset({*_NAMES, "exact_match"})
# Words in the names of what is a share of everything, or in percent.
_SHARES = ("accura", "f1", "precision", "recall", "auc", "bleu", "chrf", "rouge", "meteor", "bertscore", "exact_match")


def measure_name(key: str) -> str:
    """The name of a metric for people: eval_exact_match -> Exact match."""
    name = key.removeprefix("eval_")
    return _NAMES.get(name) or name[:1].upper() + name[1:].replace("_", " ")


def largest_possible(key: str, values: Iterable[float], *, own: bool) -> float | None:
    """What a measure that cannot be below 0 can be at most, 1 or 100; None where it has no such end, or a value beyond.

    `own`: dsrun's training has logged it, and not a program of the user's, whose values tell which of both it is."""
    name, known = key.removeprefix("eval_"), list(values)
    largest = max(known, default=math.inf) / (1 + 1e-6)  # some sum up to a little more than everything
    if not any(word in name.lower() for word in _SHARES) or largest > 100 or min(known) < 0:
        return None
    return 100.0 if largest > 1 or (own and name in _PERCENT) else 1.0
