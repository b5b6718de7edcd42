"""`dsrun compare`: runs side by side."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dsrun.cli.output import print_json, print_line, print_table
from dsrun.errors import UsageError
from dsrun.monitoring.comparison import ComparisonRow, curves, differences, labels, metrics
from dsrun.monitoring.plots import curve_marks, line_plot
from dsrun.monitoring.run_status import status_of
from dsrun.runs.reader import read_history
from dsrun.system.terminal.display import counted, duration, figure, printable, size_text

MOST = 10
_WIDEST = 40
_HEIGHT = 18
_FORMATS: Mapping[str, Callable[[Any], str]] = {
    "seconds": duration,
    "gpu_memory_peak": size_text,
    "goodput": "{:.1%}".format,
    "mfu": "{:.1%}".format,
    "padding": "{:.1%}".format,
}


def compare(*, runs: tuple[str, ...], metric: str, form: str) -> int:
    if not 2 <= len(runs) <= MOST:
        raise UsageError(f"{counted(len(runs), 'run')} to compare", fix=f"name 2 to {MOST}")
    if len({Path(run).resolve() for run in runs}) < len(runs):
        raise UsageError("the same run is named twice", fix="name different runs")
    histories = [read_history(Path(run), "view") for run in runs]
    statuses = [status_of(history, lock_tries=1) for history in histories]
    names = labels([history.path for history in histories])
    changed, measured = differences(histories), metrics(histories, statuses)
    drawn = curves(histories, metric)
    if form == "json":
        print_json(
            {
                "runs": [{"name": name, "path": history.path} for name, history in zip(names, histories, strict=True)],
                "settings": {row.name: list(row.values) for row in changed},
                "metrics": {row.name: list(row.values) for row in measured},
                "metric": metric,
                "curves": [list(map(list, drawn[name])) for name in names],
            }
        )
        return 0
    _print_rows("settings that differ" if changed else "the settings are the same", names, changed)
    _print_rows("metrics", names, measured)
    _print_plot(metric, drawn)
    return 0


def _print_rows(title: str, names: Sequence[str], rows: Sequence[ComparisonRow]) -> None:
    print_line(title)
    if rows:
        table = [("", *names), *((f"  {row.name}", *(_cell(row.name, value) for value in row.values)) for row in rows)]
        print_table(table)
    print_line()


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name in _FORMATS:
        return _FORMATS[name](value)
    if isinstance(value, float):
        return figure(value)
    text = str(value).lower() if isinstance(value, bool) else f"{value:,}" if isinstance(value, int) else str(value)
    return text if len(text) <= _WIDEST else f"…{text[1 - _WIDEST :]}"


def _print_plot(metric: str, drawn: dict[str, list[tuple[int, float]]]) -> None:
    from rich.console import Console
    from rich.text import Text

    from dsrun.cli.monitor.section import plotted, print_rendered  # rich is for people, not for JSON

    console = Console(highlight=False)
    ascii_only = console.options.ascii_only
    marks = curve_marks(len(drawn), ascii_only=ascii_only)
    colours = ("green", "yellow", "blue", "magenta", "cyan", "red")
    styles = {name: colours[place % len(colours)] for place, name in enumerate(drawn)}
    legend = Text(f"{printable(metric)}  ")
    for mark, (name, curve) in zip(marks, drawn.items(), strict=True):
        legend.append(f"{mark} {printable(name)}{'' if curve else ' (none)'}  ", style=styles[name])
    legend.rstrip()
    pieces = line_plot(drawn, width=min(console.width, 120), height=_HEIGHT, ascii_only=ascii_only)
    print_rendered(console, legend, plotted(pieces, styles))
