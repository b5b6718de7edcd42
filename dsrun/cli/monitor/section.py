"""What `dsrun monitor` has found out at one moment, and its JSON; and a part of the view, whose height is known before
it is drawn."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import click
from rich.console import Console, Group, RenderableType
from rich.text import Text

from dsrun.datafiles import evaluate, toml_beside
from dsrun.findings.finding import Finding
from dsrun.monitoring.observations import observe
from dsrun.monitoring.run_status import RunState, RunStatus, status_json
from dsrun.runs.node_status import NodeStatus
from dsrun.runs.reader import RunHistory
from dsrun.runs.records import LedgerRecord, plain
from dsrun.slurm.jobs.queue import SlurmJob
from dsrun.system.terminal.display import duration, figure, precise_duration, printable, utc_text

LOW = 34
_TABLES = toml_beside(__file__, "texts.toml")
_FUNCTIONS = {each.__name__: each for each in (duration, figure, filter, map, precise_duration, printable, round, str)}


@dataclass(frozen=True)
class MonitorSection:
    """`content` takes `height` rows; with 0 it is left out."""

    content: RenderableType
    height: int


EMPTY = MonitorSection(Text(), 0)


@dataclass(frozen=True, kw_only=True)
class TerminalSize:
    """The terminal: columns, rows (None: as many as it takes), and whether it shows more than ASCII."""

    width: int
    height: int | None = None
    ascii_only: bool = False

    @property
    def is_low(self) -> bool:
        """Whether the rows are few: figures share them, and no empty ones part the sections."""
        return self.height is not None and self.height < LOW


def print_rendered(console: Console, *content: RenderableType) -> None:
    """Print on stdout. Cells are padded to their columns' width; without a style the blanks at a line's end are
    nothing."""
    with console.capture() as captured:
        for each in content:
            console.print(each)
    for line in captured.get().splitlines():
        click.echo(line.rstrip(), color=True)


def plotted(pieces: Iterable[tuple[str, str | None]], styles: Mapping[str, str]) -> Text:
    """A `line_plot`, its curves in the styles of their names."""
    text = Text.assemble(*((piece, "dim" if name is None else styles[name]) for piece, name in pieces), no_wrap=True)
    text.rstrip()
    return text


def headed(room: TerminalSize, name: str, note: str, content: RenderableType, height: int) -> MonitorSection:
    """A section of `height` rows under its name, with an empty row above where there is room for it."""
    title = Text.assemble((name, "bold cyan"), (f"  {note}" if note else "", "dim"))
    title.no_wrap, title.overflow = True, "ellipsis"
    rows = [title, content] if room.is_low else [Text(), title, content]
    return MonitorSection(Group(*rows), height + len(rows) - 1)


def values(table: str, **names: Any) -> dict[str, Any]:
    """What the expressions of a table of texts.toml give, by name."""
    return {name: evaluate(text, _FUNCTIONS | names) for name, text in _TABLES[table].items()}


def texts(table: str, **names: Any) -> dict[str, Text]:
    """The texts of a table, each by itself, by name."""
    return {name: _styled(value) for name, value in values(table, **names).items()}


def line(table: str, **names: Any) -> Text:
    """The texts of a table, in one row."""
    return Text.assemble(*values(table, **names).values(), no_wrap=True, overflow="ellipsis")


def _styled(value: str | tuple[str, str] | list[str | tuple[str, str]]) -> Text:
    if isinstance(value, list):
        return Text.assemble(*value)
    return Text(value) if isinstance(value, str) else Text(value[0], style=value[1])


EVENTS = 20


@dataclass(frozen=True, kw_only=True)
class MonitorSnapshot:
    """`kind` tells where it comes from: a run folder, a log, or a SLURM job that has neither yet.

    `now` is in seconds since the epoch. `history` has the curves, and `nodes` what is known of ranks and GPUs."""

    kind: Literal["run", "log", "job"]
    now: float
    status: RunStatus
    history: RunHistory
    nodes: tuple[NodeStatus, ...] = ()
    job: SlurmJob | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether nothing will change any more: the run has ended, and so has its job, if it has one."""
        if self.job is not None:
            return self.job.is_final
        return self.status.is_over


def of_history(
    history: RunHistory, status: RunStatus, now: float, *, kind: Literal["run", "log"] = "run"
) -> MonitorSnapshot:
    """The snapshot of a run or log, with what is wrong with it."""
    nodes = () if status.is_over else history.present_nodes
    return MonitorSnapshot(
        kind=kind, now=now, status=status, history=history, nodes=nodes, findings=observe(status, nodes, now)
    )


def as_json(snapshot: MonitorSnapshot) -> dict[str, Any]:
    """The object that docs/monitor.md describes; what is not known is null."""
    job = snapshot.job
    return {
        "kind": snapshot.kind,
        "time": utc_text(snapshot.now),
        "status": status_json(snapshot.status),
        "nodes": [plain(asdict(node)) for node in snapshot.nodes],
        "findings": [finding.as_dict() for finding in snapshot.findings],
        "events": [plain(event) for event in last_events(snapshot.history.events)],
        "job": None if job is None else job.as_json(),
    }


def last_events(events: tuple[LedgerRecord, ...], count: int = EVENTS) -> list[Mapping[str, Any]]:
    """The last events but those that only tell of progress."""
    return [event for event in events[-10 * count :] if event.get("kind") != "progress"][-count:]


def waiting_for(job: SlurmJob, now: float) -> MonitorSnapshot:
    """A job that has neither a run folder nor a log yet, or that has never had one."""
    path = Path(job.run or job.work_dir or "/")
    status = RunStatus(path=path, state=_ending(job) if job.is_final else "starting")
    return MonitorSnapshot(kind="job", now=now, status=status, history=RunHistory(path=path), job=job)


def of_job(snapshot: MonitorSnapshot, job: SlurmJob) -> MonitorSnapshot:
    """The snapshot of the run or log of a job. What has not ended by itself ended with its job."""
    if not job.is_final or snapshot.status.is_over:
        return replace(snapshot, job=job)
    state: RunState = "killed" if snapshot.kind == "run" else _ending(job)
    status = replace(snapshot.status, state=state, eta_s=None)
    return replace(snapshot, status=status, job=job, nodes=(), findings=())


def _ending(job: SlurmJob) -> RunState:
    return "finished" if job.state == "COMPLETED" else "stopped" if job.state == "CANCELLED" else "failed"
