"""One HTML page about runs: nothing is loaded, and no text of a run is taken for HTML."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsrun import __version__
from dsrun.datafiles import evaluate, toml_beside
from dsrun.diagnosis.diagnose import likely
from dsrun.findings.finding import Finding, worst_first
from dsrun.findings.show import shown
from dsrun.findings.translation import translated
from dsrun.monitoring.comparison import RunDifference, differences
from dsrun.monitoring.observations import is_waiting_while_busy, slowest, throttle_reasons, wait_share
from dsrun.report import timeline
from dsrun.report.charts import chart
from dsrun.report.data import RunReport, deepspeed_json, shown_value
from dsrun.report.panels import ReportPanel, measure_name, panels, shown_text
from dsrun.runs.goodput import LABELS
from dsrun.runs.node_status import NodeStatus
from dsrun.runs.reader import DEFAULT
from dsrun.runs.records import finite, plain, utc_now
from dsrun.system.terminal.display import counted, duration, figure, precise_duration, size_text

if TYPE_CHECKING:
    import jinja2

TEMPLATE = "page.html.j2"
GENERATOR = f"dsrun report {__version__}"
MARKER = '<meta name="generator" content="dsrun report'
"""By this, near its beginning, a page of dsrun is recognised."""
MOST_EVALUATIONS = 30
MISSING = "—"
RESTARTS = "Restarts"
MOST_ROWS = 16
"""Of more ranks those are shown that are behind or work the longest, of more GPUs those that are used least."""
_PlacedNode = tuple[NodeStatus, Any]
"""A rank or a GPU with its node."""


@dataclass(frozen=True)
class ReportPage:
    """The runs of a page, the panels of their curves, and what differs between them."""

    runs: tuple[RunReport, ...]
    panels: tuple[ReportPanel, ...]
    differences: tuple[RunDifference, ...]

    @property
    def drawn(self) -> tuple[ReportPanel, ...]:
        """The panels with enough points for a chart."""
        return tuple(panel for panel in self.panels if panel.is_drawn)

    def as_dict(self) -> dict[str, Any]:
        """The same as numbers, for JSON."""
        return {
            "runs": [run.as_dict() for run in self.runs],
            "panels": [panel.as_dict() for panel in self.panels],
            "differences": [plain(asdict(difference)) for difference in self.differences],
        }


@dataclass(frozen=True)
class KeyFigure:
    """A key figure of a run."""

    name: str
    value: str
    note: str = ""


def report_of(runs: Sequence[RunReport]) -> ReportPage:
    """The report of these runs."""
    found = panels([run.history for run in runs], [run.name for run in runs])
    changed = differences([run.history for run in runs]) if len(runs) > 1 else []
    return ReportPage(tuple(runs), found, tuple(changed))


def render_page(report: ReportPage) -> str:
    """The page."""
    charts = [chart(panel) for panel in report.drawn]
    metrics = [each for each in charts if each.panel.name.startswith("eval_")]
    names = [run.name for run in report.runs]
    few = [panel for panel in report.panels if not panel.is_drawn]
    page = str(
        page_template(TEMPLATE).render(
            title=names[0] if len(names) == 1 else f"{len(names)} runs: {', '.join(names)}",
            generator=GENERATOR,
            now=utc_now(),
            runs=report.runs,
            charts=[each for each in charts if each not in metrics],
            metric_charts=metrics,
            figures=_figures(each for each in few if not each.name.startswith("eval_")),
            metric_figures=_figures(each for each in few if each.name.startswith("eval_")),
            marks=frozenset(mark for each in charts for mark in each.marks),
            summary=summary(report.runs),
            differences=report.differences,
            difference_rows=[
                [each.name, *(MISSING if value is None else shown_value(value) for value in each.values)]
                for each in report.differences
            ],
            data=[each.data for each in charts],
            place={each.panel.name: place for place, each in enumerate(charts)},
        )
    )
    # The macros at the beginning of the template leave blank lines.
    return page.lstrip()


def subtitle(run: RunReport) -> str:
    """What was trained, where, and by how many ranks."""
    model = run.status.model or next((each.value for each in run.settings if each.name == "model"), None)
    if model is None and not run.history.run:
        model = "a program under dsrun launch"
    ranks = counted(run.status.world_size, "rank") if run.status.world_size else None
    return " · ".join(part for part in (model, run.status.host, ranks) if part)


def tiles(run: RunReport) -> list[KeyFigure]:
    """The key figures of a run."""
    status = run.status
    best = measure_name(status.best.metric) if status.best and status.best.metric != "eval_loss" else "evaluation loss"
    speeds = (finite(each.get("tokens_per_s")) for each in run.history.steps)
    known: dict[str, Any] = {
        "status": status,
        "goodput": run.goodput,
        "losses": run.history.series("loss"),
        "speeds": sorted(each for each in speeds if each is not None),
        "best": best[:1].lower() + best[1:] if best[1:].islower() else best,
    }
    known |= {each.__name__.lstrip("_"): each for each in (_short, duration, figure, isfinite, len, precise_duration)}
    rows = (row for row in toml_beside(__file__)["figures"] if evaluate(row["when"], known))
    return [KeyFigure(*(evaluate(row[each], known) for each in ("name", "value", "note"))) for row in rows]


def summary(runs: Sequence[RunReport]) -> tuple[list[str], list[list[str]]]:
    """The heads and rows of the table of all runs: their key figures, a column each."""
    found = [{tile.name: tile.value for tile in tiles(run)} for run in runs]
    names = list(dict.fromkeys(name for values in found for name in values))
    rows = [
        [run.name, run.status.state, *(values.get(name, "0" if name == RESTARTS else MISSING) for name in names)]
        for run, values in zip(runs, found, strict=True)
    ]
    return ["run", "state", *(name.lower() for name in names)], rows


def goodput_rows(run: RunReport) -> list[tuple[str, str, float, str]]:
    """(use, what it is called, share, duration) of what took time."""
    if run.goodput is None or not run.goodput.total:
        return []
    total = run.goodput.total
    uses = run.goodput.by_use().items()
    return [(use, LABELS[use], seconds / total, precise_duration(seconds)) for use, seconds in uses if seconds > 0]


def evaluation_rows(run: RunReport) -> tuple[list[str], list[tuple[str, list[str], bool]], int]:
    """The names of the metrics; (step, values, whether it is the best) of evaluations; how many are not shown."""
    keys = run.metrics
    best = run.status.best.step if run.status.best else None
    records = run.history.evaluations[-MOST_EVALUATIONS:]
    rows = [(f"{each['step']:,}", [_cell(each.get(key)) for key in keys], each["step"] == best) for each in records]
    return [measure_name(key) for key in keys], rows, len(run.history.evaluations) - len(records)


def _figures(few: Iterable[ReportPanel]) -> list[tuple[str, str, str]]:
    """(curve, step, value) of panels with too few points for a chart."""
    return [
        (panel.title if curve.label.lower() in (panel.title.lower(), panel.unit) else f"{panel.title}, {curve.label}",
         f"{step:,}", f"{figure(value)} {panel.unit}".strip())
        for panel in few for curve in panel.curves for step, value in curve.points[:MOST_EVALUATIONS]
    ]  # fmt: skip


@dataclass(frozen=True)
class NodeTable:
    """A table without the columns that are empty in all its rows."""

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def node_tables(nodes: Sequence[NodeStatus]) -> list[NodeTable]:
    """What nodes last told of the ranks, where their steps are known, and of the GPUs; nodes.toml has their columns."""
    ranks = [(node, rank) for node in nodes for rank in node.ranks]
    gpus = [(node, gpu) for node in nodes for gpu in node.gpus]
    when = max((node.time for node in nodes), default="")[:19].replace("T", " ")
    tables = []
    if any(rank.step_s is not None for _, rank in ranks):
        behind = sorted(ranks, key=lambda each: (each[1].step, -(each[1].own_s or 0.0)))
        names = {"slow": slowest([rank for _, rank in ranks])}
        tables.append(_table("ranks", f"slowest of {len(ranks):,}", when, behind, lambda each: each[1].rank, **names))
    if gpus:
        idle = sorted(gpus, key=lambda each: 1.0 if each[1].utilization is None else each[1].utilization)
        tables.append(
            _table("GPUs", f"least used of {len(gpus):,}", when, idle, lambda each: (each[0].node, each[1].index))
        )
    return tables


def _table(
    kind: str, which: str, when: str, several: Sequence[_PlacedNode], order: Callable[[_PlacedNode], Any], **names: Any
) -> NodeTable:
    """The first of `several`, in this order."""
    shown = sorted(several[:MOST_ROWS], key=order)
    of = f"The {len(shown)} {which} {kind}" if len(several) > len(shown) else kind[0].upper() + kind[1:]
    cells = {
        head: [str(evaluate(cell, {"node": node, "each": each, **_FUNCTIONS, **names})) for node, each in shown]
        for head, cell in toml_beside(__file__, "nodes.toml")[kind].items()
    }
    heads = tuple(head for head, column in cells.items() if any(column))
    return NodeTable(f"{of} at {when}", heads, tuple(zip(*(cells[head] for head in heads), strict=True)))


_SHOWN = (precise_duration, size_text, wait_share, is_waiting_while_busy, throttle_reasons)
_FUNCTIONS = {each.__name__: each for each in _SHOWN}


def all_findings(run: RunReport) -> list[Finding]:
    """What `dsrun diagnose` and `dsrun config check` find, without the line that the verdict above the charts shows."""
    found = run.verdict.findings[1:] if run.verdict else ()
    shown = run.verdict.where if run.verdict else ""
    return [*(each for each in found if each.where != shown), *run.findings]


def _cell(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "" if value is None else str(value)
    return figure(value)


def _short(count: float) -> str:
    for size, prefix in ((1e12, " T"), (1e9, " B"), (1e6, " M")):
        if count >= size:
            return f"{count / size:.3g}{prefix}"
    return f"{count:,.0f}"


@cache
def page_template(name: str) -> "jinja2.Template":
    """A template of this folder, with what pages of reports know."""
    import jinja2
    from markupsafe import Markup

    folder = Path(__file__).parent
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
        # Foreign text without control characters and access tokens; what is HTML already stays as it is.
        finalize=lambda each: shown_text(each) if isinstance(each, str) and not hasattr(each, "__html__") else each,
    )  # fmt: skip
    for file in ("page.css", "page.js"):
        environment.globals[file.replace(".", "_")] = Markup((folder / file).read_text(encoding="utf-8"))
    environment.filters["translated"] = translated
    shared = (
        subtitle, tiles, goodput_rows, evaluation_rows, all_findings, duration, deepspeed_json, figure, likely, shown,
        node_tables,
    )  # fmt: skip
    environment.globals.update((function.__name__, function) for function in shared)
    environment.globals.update(
        default_source=DEFAULT, event_rows=timeline.rows, strip=timeline.strip,
        time_ticks=timeline.time_ticks, size=size_text, Markup=Markup, worst_first=worst_first,
    )  # fmt: skip
    return environment.get_template(name)
