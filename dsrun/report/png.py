"""The panels of a report as PNG pictures, drawn by matplotlib."""

import logging
import re
from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

from dsrun.errors import MissingError
from dsrun.report.charts import y_axis
from dsrun.report.panels import PanelCurve, ReportPanel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The colours and dashes of page.css on white.
_COLOURS = ("#0072b2", "#d55e00", "#008a64", "#b0568d", "#3d4650", "#2f8fc9", "#5b5f97", "#a87400")
_DASHES = ("-", "--", ":")
_MARKS = {"restart": "#b3261e", "checkpoint": "#008a64", "nonfinite": "#b3261e"}
_SIZE = (8.0, 4.5)
_DPI = 150


def pictures(panels: Sequence[ReportPanel]) -> Iterator[tuple[str, bytes]]:
    """(file name, PNG) of each panel. Raises MissingError where matplotlib is not installed."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # of its caches
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingError("--png needs matplotlib", fix="pip install 'dsrun[observe]'") from error
    taken: set[str] = set()
    for panel in panels:
        picture = Figure(figsize=_SIZE, dpi=_DPI, layout="constrained")
        _draw(panel, picture.add_subplot())
        content = BytesIO()
        picture.savefig(content, format="png", metadata={"Software": "dsrun report"})
        yield _file_name(panel.name, taken), content.getvalue()


def _file_name(name: str, taken: set[str]) -> str:
    """A name for the file of a panel, whatever a data set is called: eval_bleu.png."""
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-") or "panel"
    while stem.lower() in taken:
        stem += "-"
    taken.add(stem.lower())
    return f"{stem}.png"


def _draw(panel: ReportPanel, axes: "Axes") -> None:
    for curve in panel.curves:
        _draw_curve(curve, axes)
    for mark in panel.marks:
        if mark.kind == "restart":
            axes.axvline(mark.step, color=_MARKS[mark.kind], linestyle="--", linewidth=1)
        else:
            axes.axvline(mark.step, 0, 0.03, color=_MARKS[mark.kind], linewidth=1.5)
    axes.set_title(_label(panel.title), loc="left", fontweight="bold", parse_math=False)
    axes.set_xlabel("step")
    axes.set_ylabel(panel.unit)
    axes.set_yscale("log" if panel.log else "linear")
    y = y_axis(panel, "log" if panel.log else "linear")
    axes.set_ylim(y.low, y.high)
    axes.set_yticks(y.ticks, y.labels())
    axes.minorticks_off()
    axes.locator_params("x", integer=True)
    axes.grid(axis="y", color="#e5e8ec")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if len(panel.curves) > 1:
        for text in axes.legend(frameon=False).get_texts():
            text.set_parse_math(False)


def _draw_curve(curve: PanelCurve, axes: "Axes") -> None:
    colour = _COLOURS[curve.colour % len(_COLOURS)]
    dashes = _DASHES[curve.colour // len(_COLOURS) % len(_DASHES)]
    look: dict[str, Any] = {"color": colour, "linestyle": dashes, "clip_on": False}
    steps, values = zip(*curve.points, strict=True)
    label = _label(curve.label)
    if curve.mean:
        axes.plot(steps, values, alpha=0.35, linewidth=0.8, **look)
        mean_steps, means = zip(*curve.mean, strict=True)
        axes.plot(mean_steps, means, linewidth=1.6, label=label, **look)
    else:
        axes.plot(steps, values, linewidth=1.6, label=label, marker="o" if curve.dots else None, markersize=4, **look)


def _label(text: str) -> str:
    """A legend leaves out what begins with an underscore."""
    return text.lstrip("_") or "?"
