"""Curves as text: a sparkline of one row, a bar, and a plot of braille dots with axes."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from dsrun.system.terminal.display import figure

PlotPoints = Sequence[tuple[float, float]]

_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS = "_.-=+*#@"
# The bits of U+2800 by column and row of its 2 × 4 dots.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_MARKS = "●▲■◆✚○△□◇✕"
_ASCII_MARKS = "*ox+#@%&$="


def sparkline(curve: PlotPoints, width: int, *, ascii_only: bool = False) -> str:
    """The y values of a curve as at most `width` blocks, the lowest as the smallest; the x axis is even.

    Several points in a block are averaged, and a block without any repeats the one before."""
    blocks = _ASCII_BLOCKS if ascii_only else _BLOCKS
    known = [(x, y) for x, y in curve if math.isfinite(y)]
    if not known or width < 1:
        return ""
    values = [y for _, y in known] if len(known) <= width else _averaged(known, width)
    low, span = min(values), max(values) - min(values)
    top = len(blocks) - 1
    return "".join(blocks[round((value - low) / span * top) if span else 0] for value in values)


def bar(share: float, width: int, *, ascii_only: bool = False) -> str:
    """A bar of `width` cells, filled from the left to `share` (0 to 1) in steps of an eighth of a cell."""
    share = min(max(share, 0.0), 1.0)
    if ascii_only:
        return "#" * round(share * width) + "." * (width - round(share * width))
    eighths = math.floor(share * width * 8)
    full, part = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[part] if part else "")).ljust(width, "░")[:width]


def curve_marks(count: int, *, ascii_only: bool = False) -> str:
    """The marks of several curves in one plot, which tell them apart where colours do not; at most ten differ."""
    marks = _ASCII_MARKS if ascii_only else _MARKS
    return "".join(marks[place % len(marks)] for place in range(count))


def line_plot(
    curves: Mapping[str, PlotPoints], *, width: int, height: int, ascii_only: bool = False, x_label: str = "step"
) -> list[tuple[str, str | None]]:
    """Curves over each other as `height` lines of `width` columns, axes included.

    Each line comes in pieces, those of a curve with its name, those of the axes with None, a line ends with "\\n". A
    single curve is drawn with braille dots, several with their `curve_marks`."""
    points = [point for curve in curves.values() for point in curve if all(map(math.isfinite, point))]
    if not points or height < 4 or width < 24:
        return []
    low, high = _limits([y for _, y in points])
    begin, end = min(x for x, _ in points), max(x for x, _ in points)
    labels = [figure(value) for value in (high, (low + high) / 2, low)]
    margin = max(map(len, labels)) + 2
    columns, rows = width - margin, height - 2
    scale = _Scale(begin, end if end > begin else begin + 1, low, high)
    if len(curves) == 1 and not ascii_only:
        cells = _braille(*curves.items(), scale=scale, columns=columns, rows=rows)
    else:
        cells = _marked(curves, scale, columns, rows, curve_marks(len(curves), ascii_only=ascii_only))
    side, corner, floor = ("|", "+", "-") if ascii_only else ("┤", "└", "─")
    pieces: list[tuple[str, str | None]] = []
    for row in range(rows):
        place = {0: 0, rows // 2: 1, rows - 1: 2}.get(row)
        pieces.append((f"{'' if place is None else labels[place]:>{margin - 2}} {side}", None))
        cell_names = ((cells.get((column, row), (" ", None))) for column in range(columns))
        for name, group in groupby(cell_names, key=lambda cell: cell[1]):
            pieces.append(("".join(mark for mark, _ in group), name))
        pieces.append(("\n", None))
    pieces.append((f"{'':>{margin - 2}} {corner}{floor * columns}\n", None))
    first, last = f"{begin:,.0f}", f"{x_label} {end:,.0f}"
    pieces.append((f"{'':>{margin}}{first}{last:>{columns - len(first)}}\n", None))
    return pieces


class _Scale:
    def __init__(self, begin: float, end: float, low: float, high: float) -> None:
        self._begin, self._width = begin, end - begin
        self._high, self._height = high, high - low

    def place(self, x: float, y: float, columns: int, rows: int) -> tuple[int, int]:
        """The column and row of a point in a grid, kept inside of it."""
        column = round((x - self._begin) / self._width * (columns - 1))
        row = round((self._high - y) / self._height * (rows - 1))
        return min(max(column, 0), columns - 1), min(max(row, 0), rows - 1)


def _limits(values: list[float]) -> tuple[float, float]:
    """The range to show; the first few steps of a run, or a spike, do not flatten all the rest."""
    ordered = sorted(values)
    low, high = ordered[0], ordered[-1]
    most = ordered[round(0.98 * (len(ordered) - 1))]
    if len(ordered) > 50 and high - low > 3 * (most - low) > 0:
        high = most + 0.1 * (most - low)
    if high > low:
        return low, high
    return low - (abs(low) * 0.1 or 1.0), high + (abs(high) * 0.1 or 1.0)


def _braille(
    curve: tuple[str, PlotPoints], *, scale: _Scale, columns: int, rows: int
) -> dict[tuple[int, int], tuple[str, str | None]]:
    name, points = curve
    dots: dict[tuple[int, int], int] = {}
    for column, row in _passed(points, scale, columns * 2, rows * 4):
        cell = (column // 2, row // 4)
        dots[cell] = dots.get(cell, 0) | _DOTS[column % 2][row % 4]
    # Where Unicode's Braille patterns begin: one bit a dot.
    return {cell: (chr(0x2800 + bits), name) for cell, bits in dots.items()}


def _marked(
    curves: Mapping[str, PlotPoints], scale: _Scale, columns: int, rows: int, marks: str
) -> dict[tuple[int, int], tuple[str, str | None]]:
    marked = zip(marks, curves.items(), strict=True)
    return {cell: (mark, name) for mark, (name, points) in marked for cell in _passed(points, scale, columns, rows)}


def _passed(points: PlotPoints, scale: _Scale, columns: int, rows: int) -> Iterator[tuple[int, int]]:
    """The cells of a grid that a curve passes."""
    before: tuple[int, int] | None = None
    for x, y in sorted(points):
        here = scale.place(x, y, columns, rows)
        yield from _between(before or here, here)
        before = here


def _between(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    """The cells of the line from one cell to another, both included."""
    (x, y), (to_x, to_y) = start, end
    steps = max(abs(to_x - x), abs(to_y - y))
    if not steps:
        return [end]
    return [(x + round((to_x - x) * n / steps), y + round((to_y - y) * n / steps)) for n in range(steps + 1)]


def _averaged(curve: PlotPoints, count: int) -> list[float]:
    """The mean of the points in each of `count` spans of the x axis."""
    begin, end = curve[0][0], curve[-1][0]
    spans: list[list[float]] = [[] for _ in range(count)]
    for x, y in curve:
        place = int((x - begin) / (end - begin) * count) if end > begin else 0
        spans[min(max(place, 0), count - 1)].append(y)
    means: list[float] = []
    for span in spans:
        means.append(math.fsum(span) / len(span) if span else means[-1])
    return means
