"""The colours of the page can be read and told apart, light, dark and printed."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import pytest

import dsrun.report.charts as charts

CSS = (Path(charts.__file__).parent / "page.css").read_text(encoding="utf-8")
TEXT, GRAPHIC = 4.5, 3.0
"""Contrasts that WCAG 2.2 asks of text (1.4.3) and of lines and areas (1.4.11)."""
# sRGB in linear light -> what a deuteranope sees of it: Viénot, Brettel and Mollon, 1999.
DEUTERANOPE = ((0.29275, 0.70725, 0.0), (0.29275, 0.70725, 0.0), (-0.02234, 0.02234, 1.0))


def schemes() -> dict[str, dict[str, str]]:
    """The variables in force in each scheme."""
    light, dark, printed = (
        dict(re.findall(r"(--[\w-]+): (#\w+)", block)) for block in re.findall(r":root \{(.*?)\}", CSS, re.S)
    )
    return {"light": light, "dark": light | dark, "print": light | printed}


def linear(colour: str) -> tuple[float, ...]:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    return tuple(part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)


def contrast(one: str, other: str) -> float:
    light = sorted(0.2126 * red + 0.7152 * green + 0.0722 * blue for red, green, blue in (linear(one), linear(other)))
    return (light[1] + 0.05) / (light[0] + 0.05)


def distance(one: str, other: str, sight: tuple[tuple[float, ...], ...] | None = None) -> float:
    """Between two colours, in CIE Lab."""
    a, b = (lab(linear(colour), sight) for colour in (one, other))
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) ** 0.5


def lab(rgb: tuple[float, ...], sight: tuple[tuple[float, ...], ...] | None) -> tuple[float, float, float]:
    if sight:
        rgb = tuple(max(0.0, sum(row[place] * rgb[place] for place in range(3))) for row in sight)
    rows = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    white = (0.9505, 1.0, 1.089)
    x, y, z = (sum(row[place] * rgb[place] for place in range(3)) / white[n] for n, row in enumerate(rows))
    fx, fy, fz = (part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


@pytest.mark.parametrize("scheme", ["light", "dark", "print"])
def test_text_and_curves_have_contrast(scheme: str) -> None:
    colours = schemes()[scheme]
    grounds = [colours["--card"], colours["--ground"]]
    for name in ("--text", "--soft", "--accent", "--good", "--bad", "--warn"):
        assert min(contrast(colours[name], ground) for ground in grounds) >= TEXT, name
    for name in ("--good", "--bad", "--warn", "--live"):
        for text in (name, "--text", "--soft"):
            assert contrast(colours[text], colours[f"{name}-ground"]) >= TEXT, (text, name)
    for number in range(charts.COLOURS):
        assert contrast(colours[f"--c{number}"], colours["--card"]) >= GRAPHIC, number


@pytest.mark.parametrize("scheme", ["light", "dark", "print"])
@pytest.mark.parametrize("sight", [None, DEUTERANOPE], ids=["all colours", "deuteranope"])
def test_first_curves_are_told_apart(scheme: str, sight: tuple[tuple[float, ...], ...] | None) -> None:
    """Also by who does not see red and green: a difference of 10 in Lab is plain for lines beside each other."""
    colours = [schemes()[scheme][f"--c{number}"] for number in range(5)]
    near = {(a, b): distance(a, b, sight) for a, b in combinations(colours, 2)}
    assert min(near.values()) >= 10, near


def test_every_colour_has_its_class() -> None:
    assert [f".c{number} {{ stroke: var(--c{number}); }}" in CSS for number in range(charts.COLOURS)].count(False) == 0
