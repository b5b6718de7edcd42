"""The figures of training with their sparklines, and the plot of the loss beside them where there is room."""

from rich.console import Group
from rich.table import Table
from rich.text import Text

from dsrun.cli.monitor.section import EMPTY, MonitorSection, TerminalSize, plotted
from dsrun.cli.monitor.snapshot import MonitorSnapshot
from dsrun.monitoring.plots import line_plot, sparkline
from dsrun.runs.reader import series
from dsrun.system.terminal.display import counted, duration, figure, precise_duration, printable

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
    if room.is_low:
        about = _run_parts(snapshot)
        rows.append(_joined([*_speed_parts(snapshot), *(part for part in about if part[0] == "goodput")]))
        rows.append(_joined([part for part in about if part[0] != "goodput"]))
    else:
        rows += _speed_parts(snapshot) + _run_parts(snapshot)
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


def _joined(parts: list[MonitorFigure]) -> MonitorFigure:
    """Several figures in one row, under the name of the first."""
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


def _speed_parts(snapshot: MonitorSnapshot) -> list[MonitorFigure]:
    status, share = snapshot.status, "{:.1%}".format
    known = (
        ("step time", precise_duration, status.step_s),
        ("MFU", share, status.mfu),
        ("padding", share, status.padding),
    )
    return [(name, Text(shown(value))) for name, shown, value in known if value is not None]


def _run_parts(snapshot: MonitorSnapshot) -> list[MonitorFigure]:
    """Checkpoint, best evaluation, goodput."""
    status = snapshot.status
    rows: list[MonitorFigure] = []
    if status.checkpoint_step is not None:
        age = f", {duration(status.checkpoint_age_s)} ago" if status.checkpoint_age_s is not None else ""
        rows.append(("checkpoint", Text(f"step {status.checkpoint_step:,}{age}")))
    elif snapshot.history.run and status.step:
        rows.append(("checkpoint", Text("none yet", style="yellow")))
    if status.best is not None:
        name = printable(status.best.metric.removeprefix("eval_"))
        rows.append(("best eval", Text(f"{name} {figure(status.best.value)} at step {status.best.step:,}")))
    if status.goodput is not None:
        again = f", {counted(status.restarts, 'restart')}" if status.restarts else ""
        rows.append(("goodput", Text(f"{status.goodput:.1%}{again}")))
    if status.silent_s is not None and not status.is_over:
        slow = max(60.0, 10 * (status.step_s or 0.0))
        rows.append(
            ("last output", Text(f"{duration(status.silent_s)} ago", style="yellow" if status.silent_s > slow else ""))
        )
    return rows
