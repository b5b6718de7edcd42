"""`dsrun monitor`: chooses where to look and how to show it."""

from __future__ import annotations

import time

import click
from rich.console import Console

from dsrun.cli.monitor.plain import ChangeLines
from dsrun.cli.monitor.section import Room
from dsrun.cli.monitor.snapshot import Snapshot, as_json
from dsrun.cli.monitor.sources import Source, StdinSource, find_source
from dsrun.cli.monitor.view import render
from dsrun.cli.output import print_json, print_line

_NARROWEST = 40
_GONE_S = 3600.0


def monitor(*, run: str | None, log: str | None, job_id: str | None, interval: float, once: bool, form: str) -> int:
    """Show the run once, on the whole terminal, or line by line."""
    source = find_source(run, log, job_id)
    if once or form == "json":
        if isinstance(source, StdinSource):
            source.read_to_end()
        snapshot = source.read()
        if form == "json":
            print_json(as_json(snapshot))
        else:
            _print(snapshot)
        return 0
    console = Console()
    if console.is_terminal and not console.is_dumb_terminal:
        from dsrun.cli.monitor.live import show_live

        _print(show_live(source.read, console, interval_s=interval))
    else:
        _follow(source, interval)
    return 0


def _follow(source: Source, interval_s: float) -> None:
    """A line for every change, until the run is over. A log that nobody has written to for an hour is."""
    changes = ChangeLines()
    while True:
        snapshot = source.read()
        for line in changes.lines(snapshot):
            print_line(line)
        if snapshot.is_over or (snapshot.status.state == "silent" and (snapshot.status.silent_s or 0.0) > _GONE_S):
            return
        time.sleep(interval_s)


def _print(snapshot: Snapshot) -> None:
    console = Console(highlight=False)
    room = Room(width=max(console.width, _NARROWEST), ascii_only=console.options.ascii_only)
    with console.capture() as captured:
        console.print(render(snapshot, room))
    # Cells are padded to their columns' width; without a style the blanks at a line's end are nothing.
    for line in captured.get().splitlines():
        click.echo(line.rstrip(), color=True)
