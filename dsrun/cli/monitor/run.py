"""`dsrun monitor`: chooses where to look and how to show it: the view, or a line for every change."""

import time

from rich.console import Console

from dsrun.cli.monitor.section import MonitorSnapshot, TerminalSize, as_json, print_rendered, values
from dsrun.cli.monitor.sources import MonitorSource, StdinSource, find_source
from dsrun.cli.monitor.view import render_view
from dsrun.cli.output import print_json, print_line
from dsrun.events import level_of
from dsrun.findings.show import shown
from dsrun.monitoring.event_text import describe
from dsrun.runs.records import LedgerRecord, seconds_of
from dsrun.system.terminal.display import printable

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


def _follow(source: MonitorSource, interval_s: float) -> None:
    """A line for every change, until the run is over. A log that nobody has written to for an hour is."""
    changes = ChangeLines()
    while True:
        snapshot = source.read()
        for line in changes.lines(snapshot):
            print_line(line)
        if snapshot.is_over or (snapshot.status.state == "silent" and (snapshot.status.silent_s or 0.0) > _GONE_S):
            return
        time.sleep(interval_s)


def _print(snapshot: MonitorSnapshot) -> None:
    console = Console(highlight=False)
    room = TerminalSize(width=max(console.width, _NARROWEST), ascii_only=console.options.ascii_only)
    print_rendered(console, render_view(snapshot, room))


class ChangeLines:
    """The lines for what has changed since the snapshot before."""

    def __init__(self) -> None:
        self._last = ""
        self._events: int | None = None
        self._findings: set[str] = set()

    def lines(self, snapshot: MonitorSnapshot) -> list[str]:
        """New events, new findings, and the state with its figures, where any of it is another."""
        clock = _clock(snapshot.now)
        found = [
            f"{_clock(seconds_of(event) or snapshot.now)}  {printable(describe(event))}"
            for event in self._new_events(snapshot)
        ]
        codes = {f"{finding.code} {finding.where}" for finding in snapshot.findings}
        for finding in snapshot.findings:
            if f"{finding.code} {finding.where}" not in self._findings:
                part = shown(finding)
                found.append(f"{clock}  {part.level}: {part.message}")
        self._findings = codes
        line = state_line(snapshot)
        if line != self._last:
            self._last = line
            found.append(f"{clock}  {line}")
        return found

    def _new_events(self, snapshot: MonitorSnapshot) -> list[LedgerRecord]:
        """Those since the last call; the first shows none, as they are history."""
        events = [event for event in snapshot.history.events if level_of(event) != "quiet"]
        before = len(events) if self._events is None or self._events > len(events) else self._events
        self._events = len(events)
        return events[before:]


def state_line(snapshot: MonitorSnapshot) -> str:
    """State, step and the main figures in one line."""
    found = values("line", status=snapshot.status, job=snapshot.job, kind=snapshot.kind)
    return printable("  ".join(filter(None, found.values())))


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))
