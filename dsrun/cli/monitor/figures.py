"""The figures of training with their sparklines, and the plot of the loss beside them where there is room."""

from collections.abc import Mapping

from rich.console import Group
from rich.table import Table
from rich.text import Text

from dsrun.cli.monitor.section import EMPTY, MonitorSection, TerminalSize, plotted, texts
from dsrun.cli.monitor.snapshot import MonitorSnapshot
from dsrun.monitoring.plots import line_plot, sparkline
from dsrun.runs.reader import series
from dsrun.system.terminal.display import counted, figure

_WIDE = 100
_LABEL = 12
_VALUE = 10
_MOST_SPARK = 60
_PLOT_HEIGHT = 9
MonitorFigure = tuple[str, Text]
# What has a curve: key of metrics.jsonl, name, sparkline's style.
_CURVES = (("loss", "loss", "green"), ("lr", "lr", "blue"), ("grad_norm", "grad norm", "magenta"))


def figures_section(snapshot: MonitorSnapshot, room: TerminalSize) -> MonitorSection:
    """Figures at the left, and at the right of a wide terminal the loss over the steps."""
    is_wide = room.width >= _WIDE and not room.is_low
    width = room.width // 2 - 2 if is_wide else room.width
    rows = _curve_rows(snapshot, min(width - _LABEL - _VALUE - 2, _MOST_SPARK), ascii_only=room.ascii_only)
    status = snapshot.status
    speed = texts("speed", status=status)
    about = texts("run", status=status, run=snapshot.history.run, restarts=counted(status.restarts, "restart"))
    if room.is_low:
        rows += [_joined(speed | {"goodput": about.pop("goodput")}), _joined(about)]
    else:
        rows += (speed | about).items()
    rows = [(name, text) for name, text in rows if text]
    if not rows:
        return EMPTY
    grid = Table.grid(padding=(0, 1))
    grid.add_column(style="dim", no_wrap=True, width=_LABEL)
    grid.add_column(no_wrap=True, overflow="ellipsis", width=width - _LABEL - 1)
    for name, text in rows:
        grid.add_row(name, text)
    curve = series(snapshot.history.steps, "loss") if is_wide else []
    if len(curve) < 3:
        return MonitorSection(grid, len(rows)) if room.is_low else MonitorSection(Group(Text(), grid), len(rows) + 1)
    high = max(_PLOT_HEIGHT, len(rows))
    pieces = line_plot({"loss": curve}, width=room.width - width - 3, height=high, ascii_only=room.ascii_only)
    both = Table.grid(padding=(0, 2))
    both.add_row(grid, plotted(pieces, {"loss": "green"}))
    return MonitorSection(Group(Text(), both), max(len(rows), _PLOT_HEIGHT) + 1)


def _joined(figures: Mapping[str, Text]) -> MonitorFigure:
    """Several figures in one row, under the name of the first."""
    parts = [(name, text) for name, text in figures.items() if text]
    if not parts:
        return "", Text()
    (first, text), *others = parts
    return first, Text(" · ").join([text, *(Text.assemble((f"{name} ", "dim"), text) for name, text in others)])


def _curve_rows(snapshot: MonitorSnapshot, width: int, *, ascii_only: bool) -> list[MonitorFigure]:
    """The figures that change all the time, with their sparklines."""
    status, steps = snapshot.status, snapshot.history.steps
    rows: list[MonitorFigure] = []
    speed = "tokens" if status.tokens_per_s is not None else "samples"
    for key, name, style in (*_CURVES, (f"{speed}_per_s", f"{speed}/s", "yellow")):
        value = getattr(status, key)
        if value is None and not (key == "loss" and steps):
            continue
        weight = "bold red" if value is None else "bold" if key == "loss" else ""
        text = Text.assemble((f"{'nan' if value is None else figure(value):<{_VALUE}}", weight))
        text.append(sparkline(series(steps, key), width, ascii_only=ascii_only), style=style)
        rows.append((name, text))
    return rows
