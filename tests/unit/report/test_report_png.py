"""The charts as PNG pictures."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from dsrun.errors import MissingError
from dsrun.report.charts import y_axis
from dsrun.report.panels import PanelCurve, ReportPanel, panels
from dsrun.report.png import _draw, pictures
from dsrun.runs.reader import read_history
from tests.run_folders import finished_run, write_run

PNG = b"\x89PNG\r\n\x1a\n"


def test_every_panel_is_a_picture(tmp_path: Path) -> None:
    found = dict(pictures(panels([read_history(finished_run(tmp_path))], ["run"])))
    assert {"loss.png", "lr.png", "throughput.png", "eval_bleu.png"} <= set(found)
    assert all(content.startswith(PNG) for content in found.values())


def test_names_and_values_of_all_kinds_are_drawn() -> None:
    """Foreign names are neither paths nor formulas; gaps and single points are no errors."""
    curves = tuple(
        PanelCurve(
            label=label, key="x", run=0, colour=colour, points=((1, 1.0), (2, math.nan), (3, 2.0)), mean=((1, 1.0),)
        )
        for colour, label in enumerate(("_hidden", "$x^", "a"))
    )
    one = ReportPanel(name="eval_../../x", title="$\\frac", unit="", curves=curves, log=True)
    other = ReportPanel(name="eval_..\\..\\x", title="", unit="", curves=curves[:1])
    assert [name for name, _ in pictures([one, other])] == ["eval_-x.png", "eval_-x-.png"]


def test_picture_has_the_axis_of_the_page(tmp_path: Path) -> None:
    """A BLEU score near 0 stands near the bottom, not on an axis around it."""
    metrics = [{"step": step, "eval_bleu": step / 100} for step in (1, 2, 3)]
    (panel,) = panels([read_history(write_run(tmp_path, metrics=metrics))], ["run"])
    axes = Figure().add_subplot()
    _draw(panel, axes)
    axis = y_axis(panel, "linear")
    assert axes.get_ylim() == (axis.low, axis.high) == (0, 10)


def test_missing_matplotlib_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingError, match=r"pip install 'dsrun\[observe\]'"):
        next(pictures([]))
