"""Curves of runs: every peak in fewer points, gaps where a value is not finite, marks, and SVG without foreign tags."""

from __future__ import annotations

import math
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dsrun.report.charts import HEIGHT, WIDTH, chart, linear_axis, log_axis, path, step_axis
from dsrun.report.panels import MOST_POINTS, PanelCurve, ReportPanel, panels, points_of, smoothed, thinned
from dsrun.runs.reader import read_history
from tests.run_folders import event, finished_run, steps, write_run

NAN = math.nan


def one_panel(folder: Path, name: str) -> ReportPanel:
    """The panel of this name in the report of one run."""
    found = {panel.name: panel for panel in panels([read_history(folder)], ["run"])}
    return found[name]


def moves(d: str) -> list[tuple[float, float]]:
    """The absolute points of a path's `d`."""
    found = []
    for command, numbers in re.findall(r"([MlhL])([^MlhL]*)", d):
        values = [float(number) for number in numbers.split()]
        if command == "M":
            found.append((values[0], values[1]))
        elif command == "l":
            for right, down in zip(values[::2], values[1::2], strict=True):
                found.append((found[-1][0] + right, found[-1][1] + down))
    return found


def test_fewer_points_keep_peaks_gaps_and_ends() -> None:
    points = [(step, 1.0) for step in range(100_000)]
    points[31_415], points[77_777], points[50_000] = (31_415, 99.0), (77_777, -99.0), (50_000, NAN)
    kept = thinned(points, MOST_POINTS)
    assert len(kept) <= MOST_POINTS + 10
    assert [step for step, _ in kept] == sorted(step for step, _ in kept)
    assert {points[0], points[-1], (31_415, 99.0), (77_777, -99.0)} <= set(kept)
    assert [step for step, value in kept if math.isnan(value)] == [50_000]


def test_few_points_all_stay() -> None:
    points = [(1, 2.0), (2, NAN), (5, 3.0)]
    assert thinned(points, 3) == tuple(points)


def test_running_mean_neither_lags_nor_crosses_gaps() -> None:
    line = [(step, float(step)) for step in range(1000)]
    assert all(abs(mean - step) <= 4 for step, mean in smoothed(line))
    zigzag = [(step, float(step % 2)) for step in range(1000)]
    assert all(abs(mean - 0.5) < 0.1 for _, mean in smoothed(zigzag)[50:-50])
    broken = [(step, 0.0) for step in range(500)] + [(500, NAN)] + [(step, 100.0) for step in range(501, 1000)]
    means = smoothed(broken)
    assert {mean for _, mean in means[:500]} == {0.0}
    assert math.isnan(means[500][1])
    assert {mean for _, mean in means[501:]} == {100.0}


def test_values_that_no_axis_holds_are_gaps() -> None:
    records = [{"step": 1, "loss": 10**400}, {"step": 2, "loss": -1e308}, {"step": 3, "loss": 1e-320}]
    records += [
        {"step": 4, "loss": True},
        {"step": "5", "loss": 1.0},
        {"step": 6, "loss": "x"},
        {"step": 10**20, "loss": 1},
    ]
    assert points_of(records, "loss") == ((1, math.inf), (2, -math.inf), (3, 0.0))


def test_line_breaks_at_gaps() -> None:
    """A point between two gaps is a dot."""
    points = [(0, 0.0), (1, 1.0), (2, NAN), (3, 1.0), (4, math.inf), (5, 0.0), (6, 1.0)]
    d = path(points, step_axis(0, 6), linear_axis(0, 1))
    assert d.count("M") == 3
    assert d.count("h0") == 1
    places = moves(d)
    assert places[0] == (0, HEIGHT)
    assert places[-1] == pytest.approx((WIDTH, 0), abs=0.2)


def test_rounding_does_not_add_up() -> None:
    points = [(step, math.sin(step)) for step in range(1000)]
    x, y = step_axis(0, 999), linear_axis(-1, 1)
    for (left, top), (step, value) in zip(moves(path(points, x, y)), points, strict=True):
        assert left == pytest.approx(WIDTH * x.place(step), abs=0.051)
        assert top == pytest.approx(HEIGHT * (1 - y.place(value)), abs=0.051)


def test_logarithmic_line_breaks_at_zero() -> None:
    d = path([(0, 1.0), (1, 0.0), (2, 0.1), (3, 0.01)], step_axis(0, 3), log_axis(0.01, 1))
    assert d.count("M") == 2


def test_svg_is_well_formed_whatever_curves_are_called() -> None:
    name = "</svg><script>alert('&')</script>\""
    curve = PanelCurve(label=name, key="loss", run=0, colour=0, points=((1, 2.0), (2, NAN), (3, 1.0)))
    found = chart(ReportPanel(name="loss", title=name, unit=name, curves=(curve,), both=True))
    assert [view.scale for view in found.views] == ["linear", "log"]
    for view in found.views:
        root = ElementTree.fromstring(view.svg)
        assert {element.tag for element in root.iter()} == {"svg", "path", "title"}
        assert name in root.attrib["aria-label"]


def test_gap_is_shown_with_its_value() -> None:
    curve = PanelCurve(
        label="training", key="loss", run=0, colour=0, points=((1, 2.0), (2, NAN), (3, math.inf), (4, 1.0))
    )
    found = chart(ReportPanel(name="loss", title="Loss", unit="", curves=(curve,)))
    root = ElementTree.fromstring(found.views[0].svg)
    assert [each.text for each in root.iter("title")] == ["step 2: training is NaN", "step 3: training is ∞"]
    assert "nonfinite" in found.marks


def test_long_curve_is_drawn_under_its_mean(tmp_path: Path) -> None:
    """The mean is that of all values, not of the extremes that are left."""
    peaks = [{**record, "loss": 100.0 if record["step"] % 100 == 0 else 1.0} for record in steps(20_000)]
    panel = one_panel(write_run(tmp_path, events=[event("start")], metrics=peaks), "loss")
    (curve,) = panel.curves
    assert max(value for _, value in curve.points) == 100.0
    assert all(1.5 < value < 2.5 for _, value in curve.mean[10:-10])
    assert 'class="line faint c0 d0"' in chart(panel).views[0].svg


def test_panels_are_those_of_the_keys(tmp_path: Path) -> None:
    history = read_history(finished_run(tmp_path))
    found = [panel.name for panel in panels([history], ["run"])]
    assert found == ["loss", "lr", "grad_norm", "throughput", "mfu", "memory", "padding", "eval_bleu"]
    loss = panels([history], ["run"])[0]
    assert [(curve.label, curve.key, curve.dots) for curve in loss.curves] == [
        ("training", "loss", False), ("evaluation", "eval_loss", True),
    ]  # fmt: skip


def test_sets_of_a_mixture_and_dpo_have_panels(tmp_path: Path) -> None:
    metrics = steps(3, **{"loss/wiki": 1.0, "loss/code": 2.0, "rewards/margins": 0.5})
    found = {panel.name: panel for panel in panels([read_history(write_run(tmp_path, metrics=metrics))], ["run"])}
    assert [curve.label for curve in found["loss"].curves] == ["training"]
    assert [curve.label for curve in found["rewards_each"].curves] == ["margins"]
    assert [curve.label for curve in found["loss_each"].curves] == ["wiki", "code"]


def test_restarts_and_checkpoints_are_marked(tmp_path: Path) -> None:
    events = [
        event("start"), event("training", 1, step=0, max_steps=30), event("checkpoint_end", 5, step=10),
        event("nan", 6, step=12, message="step 12: the loss is nan"), event("failure", 7, cause="x"),
        event("restart", 8, attempt=1), event("start", 9), event("training", 10, step=10),
        event("checkpoint_end", 11, step=20),
    ]  # fmt: skip
    folder = write_run(tmp_path, events=events, metrics=steps(30))
    marks = [(mark.kind, mark.step) for mark in one_panel(folder, "loss").marks]
    assert marks == [("restart", 10), ("nonfinite", 12), ("checkpoint", 10), ("checkpoint", 20)]
    assert {mark.kind for mark in one_panel(folder, "lr").marks} == {"restart", "nonfinite"}
    root = ElementTree.fromstring(chart(one_panel(folder, "loss")).views[0].svg)
    assert [each.attrib["class"] for each in root if each.find("title") is not None] == [kind for kind, _ in marks]


def test_curves_of_several_runs_share_panels(tmp_path: Path) -> None:
    histories = [read_history(finished_run(tmp_path / name)) for name in ("a", "b")]
    loss, *_ = found = panels(histories, ["a", "b"])
    assert [(curve.label, curve.colour) for curve in loss.curves] == [
        ("a, training", 0), ("a, evaluation", 0), ("b, training", 1), ("b, evaluation", 1),
    ]  # fmt: skip
    assert [curve.key for panel in found if panel.name == "memory" for curve in panel.curves].count(
        "gpu_memory_peak"
    ) == 2
    assert loss.marks == ()


def test_losses_over_decades_begin_logarithmic(tmp_path: Path) -> None:
    wide = [{"step": step, "loss": 100 * 0.9**step} for step in range(100)]
    assert one_panel(write_run(tmp_path / "wide", metrics=wide), "loss").log
    narrow = one_panel(write_run(tmp_path / "narrow", metrics=steps(30)), "loss")
    assert narrow.both
    assert not narrow.log
    negative = [{"step": step, "loss": -1.0 * step} for step in (1, 2, 3)]
    assert not one_panel(write_run(tmp_path / "negative", metrics=negative), "loss").both
