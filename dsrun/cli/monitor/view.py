"""A snapshot of a run as it appears on a terminal: sections from above, each cut to the room that is left; figures of
training with their sparklines, and the plot of the loss beside them where there is room."""

import time
from collections.abc import Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from dsrun.cli.monitor.nodes import gpu_section, host_section, rank_section
from dsrun.cli.monitor.section import (
    EMPTY,
    MonitorSection,
    MonitorSnapshot,
    TerminalSize,
    headed,
    last_events,
    line,
    plotted,
    texts,
)
from dsrun.datafiles import toml_beside
from dsrun.events import EventLevel, level_of
from dsrun.findings.finding import Finding, has_errors
from dsrun.findings.show import shown
from dsrun.monitoring.event_text import describe
from dsrun.monitoring.plots import bar, line_plot, sparkline
from dsrun.runs.reader import series
from dsrun.runs.records import seconds_of
from dsrun.system.terminal.display import UNKNOWN, counted, duration, figure, printable

_STYLES = toml_beside(__file__)
_EVENT_STYLES: dict[EventLevel, str] = _STYLES["events"]
_EVENTS = 10
_ALL = 1_000
_RANKS = 6
"""Rows in which the ranks can be summed up."""
_FINDINGS = 4
_WIDEST_BAR, _NARROWEST_BAR = 60, 6
_PLAIN = Console(width=80)
"""Text is measured by a console; which one does not matter."""


def render_view(snapshot: MonitorSnapshot, room: TerminalSize) -> RenderableType:
    """The whole view."""
    sections = [_header(snapshot, room)]
    if snapshot.job is not None:
        sections.append(_job_section(snapshot, room))
    if snapshot.kind != "job":
        sections += [_progress(snapshot, room), _findings(snapshot.findings, room), figures_section(snapshot, room)]
        left = (room.height or _ALL) - sum(section.height for section in sections)
        sections += _below(snapshot, room, left)
    return Group(*(section.content for section in sections if section.height))


def _below(snapshot: MonitorSnapshot, room: TerminalSize, left: int) -> list[MonitorSection]:
    """GPUs, ranks, host and events in the rows that are `left`; each gets what the ones before it leave."""
    events = min(2 if room.is_low else 4, len(snapshot.history.events))
    reserved = events + 2 if events else 0
    sections = []
    has_ranks = any(node.ranks for node in snapshot.nodes)
    for build in (gpu_section, rank_section, host_section):
        most = left - reserved
        if build is gpu_section and has_ranks:
            most = max(most // 2, most - _RANKS)
        section = build(snapshot, room, most=most)
        sections.append(section)
        left -= section.height
    most = left - (1 if room.is_low else 2) if room.height else _EVENTS
    return [*sections, _events(snapshot, room, most=most)]


def _header(snapshot: MonitorSnapshot, room: TerminalSize) -> MonitorSection:
    status = snapshot.status
    state = status.state if snapshot.kind != "job" or status.is_over else "waiting"
    place = str(status.path) if snapshot.kind != "job" or snapshot.job is None else snapshot.job.run
    about = [status.model and printable(status.model.rstrip("/").rpartition("/")[2]), _ranks(snapshot)]
    if status.since_s is not None:
        about.append(f"{'took' if status.is_over else 'for'} {duration(status.since_s)}")
    shown = " · ".join(each for each in about if each)
    left = line("header", state=state, style=_STYLES["states"][status.state], place=place, about=shown)
    clock = Text(time.strftime("%H:%M:%S", time.localtime(snapshot.now)), style="dim", no_wrap=True)
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_row(left, clock)
    rows: list[RenderableType] = [grid]
    if status.is_over and status.state != "finished" and (status.cause or status.message):
        rows.append(line("why", status=status, kind=snapshot.kind))
    return MonitorSection(Group(*rows), len(rows))


def _ranks(snapshot: MonitorSnapshot) -> str:
    size, nodes = snapshot.status.world_size, len(snapshot.nodes)
    ranks = counted(size, "rank") if size else ""
    return f"{ranks} on {nodes} nodes" if ranks and nodes > 1 else ranks


def _job_section(snapshot: MonitorSnapshot, room: TerminalSize) -> MonitorSection:
    """The job: its state, why it waits and when it is expected to start."""
    job = snapshot.job
    if job is None:
        return EMPTY
    rows = [line("job", job=job)]
    if job.reason and not job.is_final:
        reason = Text(printable(job.explained_reason), style="yellow")
        rows += list(reason.wrap(_PLAIN, room.width))
    if job.state == "PENDING":
        wanted = f"{counted(job.node_count, 'node')} of {printable(job.partition)}"
        rows.append(Text(f"{wanted}, submitted at {job.submitted.replace('T', ' ')}"))
        expected = job.expected_start.replace("T", " ")
        rows.append(Text(f"expected to start at {expected}" if expected else "SLURM expects no start time yet"))
    elif snapshot.kind == "job":
        rows.append(Text("there is neither a run folder nor a log of it here", style="dim"))
    return MonitorSection(Group(*rows), len(rows))


def _progress(snapshot: MonitorSnapshot, room: TerminalSize) -> MonitorSection:
    """The bar: step of max, epoch, time left."""
    status = snapshot.status
    if status.step is None:
        lines = len(snapshot.history.steps)
        none = "no step yet" if status.state == "starting" else "no step was logged"
        none = f"{lines:,} losses were logged without their step" if lines else none
        return MonitorSection(Text(none, style="dim"), 1)
    eta = end = ""
    if status.eta_s is not None and not has_errors(snapshot.findings):
        eta = duration(status.eta_s)
        if eta != UNKNOWN:
            at = time.localtime(snapshot.now + status.eta_s)
            end = time.strftime(" (%H:%M)" if status.eta_s < 86400 else " (%a %d %b, %H:%M)", at)
    text = line("progress", status=status, eta=eta, end=end)
    share = status.step / status.max_steps if status.max_steps else None
    width = min(_WIDEST_BAR, room.width - text.cell_len - 2)
    if share is None or width < _NARROWEST_BAR:
        return MonitorSection(text, 1)
    style = "green" if not status.is_over or status.state == "finished" else "yellow"
    filled = Text(bar(share, width, ascii_only=room.ascii_only), style=style)
    return MonitorSection(Text.assemble(filled, "  ", text, no_wrap=True, overflow="ellipsis"), 1)


def _findings(findings: Sequence[Finding], room: TerminalSize) -> MonitorSection:
    """What is wrong, the worst first; a long one takes two rows."""
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(overflow="ellipsis")
    height = 0
    for finding in findings[: 2 if room.is_low else _FINDINGS]:
        style = "bold red" if finding.level == "error" else "yellow"
        part = shown(finding)
        line = Text(part.message, style=style)
        if part.fix:
            line.append(f" ({part.fix})", style="dim")
        rows = list(line.wrap(_PLAIN, room.width - 2))[:2]
        table.add_row(Text("!", style=style), Text("\n").join(rows))
        height += len(rows)
    return MonitorSection(table, height)


def _events(snapshot: MonitorSnapshot, room: TerminalSize, *, most: int) -> MonitorSection:
    """The last events, the newest below."""
    events = [event for event in last_events(snapshot.history.events, 60) if level_of(event) != "quiet"]
    if not events or most < 1:
        return EMPTY
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="dim", min_width=8)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    shown = events[-most:]
    for event in shown:
        at = seconds_of(event)
        recent = at is None or snapshot.now - at < 12 * 3600
        clock = "" if at is None else time.strftime("%H:%M:%S" if recent else "%d %b %H:%M", time.localtime(at))
        text = Text(printable(describe(event)), style=_EVENT_STYLES[level_of(event)])
        text.truncate(room.width - max(8, len(clock)) - 2, overflow="ellipsis")
        grid.add_row(clock, text)
    return headed(room, "events", "", grid, len(shown))


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
