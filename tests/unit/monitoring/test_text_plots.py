"""Sparklines, bars and plots as text."""

from __future__ import annotations

import math

import pytest

from dsrun.monitoring.plots import bar, curve_marks, line_plot, sparkline


def test_sparkline_is_lowest_and_highest_at_the_extremes() -> None:
    assert sparkline([(n, n) for n in range(8)], 20) == "▁▂▃▄▅▆▇█"
    assert sparkline([(n, n) for n in range(8)], 20, ascii_only=True) == "_.-=+*#@"
    assert sparkline([(1, 5.0), (2, 5.0)], 9) == "▁▁"
    assert sparkline([], 9) == sparkline([(1, math.nan)], 9) == ""


def test_sparkline_has_an_even_axis() -> None:
    """Of a long run, older steps are sampled: many points at the end are no more than that end."""
    old = [(1000 * n, 8.0) for n in range(10)]
    new = [(9000 + n, 0.0) for n in range(1000)]
    assert sparkline([*old, *new], 10).startswith("█" * 8)


@pytest.mark.parametrize(("share", "drawn"), [(0, "░░░░"), (0.5, "██░░"), (1, "████"), (7, "████"), (0.125, "▌░░░")])
def test_bar_fills_by_eighths(share: float, drawn: str) -> None:
    assert bar(share, 4) == drawn


def test_bar_in_ascii() -> None:
    assert bar(0.5, 4, ascii_only=True) == "##.."


def rows(curves: dict[str, list[tuple[float, float]]], **options: bool) -> list[str]:
    return "".join(piece for piece, _ in line_plot(curves, width=40, height=10, **options)).splitlines()


def test_one_curve_is_drawn_with_braille_dots() -> None:
    drawn = rows({"loss": [(n, 10.0 - n) for n in range(11)]})
    assert len(drawn) == 10
    assert all(len(line) == 40 for line in drawn)
    assert drawn[0].split()[0] == "10"
    assert drawn[-1].split() == ["0", "step", "10"]
    dots = [line.index(next(mark for mark in line if mark > "\u2800")) for line in drawn[:8]]
    assert dots == sorted(dots)  # it falls


def test_several_curves_have_marks_of_their_own() -> None:
    curves = {"a": [(0.0, 1.0), (10.0, 1.0)], "b": [(0.0, 2.0), (5.0, 2.0)]}
    first, second = curve_marks(2)
    drawn = rows(curves)
    assert drawn[0].count(second) == 18
    assert drawn[7].count(first) > 30
    plain = rows(curves, ascii_only=True)
    assert all(line.isascii() for line in plain)
    pieces = line_plot(curves, width=40, height=10)
    assert {name for _, name in pieces} == {None, "a", "b"}


def test_a_spike_does_not_flatten_the_curve() -> None:
    curve = [(float(n), 1.0 + n / 100) for n in range(100)]
    curve[50] = (50.0, 1e6)
    assert float(rows({"loss": curve})[0].split()[0]) < 3


def test_too_small_or_empty_plots_draw_nothing() -> None:
    assert line_plot({"loss": []}, width=40, height=10) == []
    assert line_plot({"loss": [(1, 1.0)]}, width=10, height=10) == []
