"""One HTML page with what `dsrun diagnose` found: nothing is loaded, and no text of a log is taken for HTML."""

from collections.abc import Mapping
from typing import NamedTuple

from dsrun import __version__
from dsrun.diagnosis.candidates import COUNTS, Candidate, reason
from dsrun.diagnosis.diagnose import RunVerdict
from dsrun.findings.finding import text_of
from dsrun.report.page import page_template
from dsrun.report.timeline import time_ticks
from dsrun.runs.records import utc_now
from dsrun.system.terminal.display import counted, utc_text


class FailureTimeline(NamedTuple):
    """Rows of a rank, -1 for none, and a log, the first that count in front: marks of a candidate with its number in
    the table and its place from 0 to 1. `ticks` are those of the seconds since `start`; by lines there are none."""

    rows: list[tuple[int, str, list[tuple[int, float, Candidate]]]]
    ticks: list[tuple[float, str]]
    start: float


def render_diagnosis(verdicts: Mapping[str, RunVerdict]) -> str:
    """The page about jobs or runs by name: a section each."""
    named = {name or ", ".join(verdict.logs[:3]): verdict for name, verdict in verdicts.items()}
    title = next(iter(named)) if len(named) == 1 else counted(len(named), "job")
    page = page_template("diagnosis.html.j2").render(
        title=title, by=__version__, now=utc_now(), verdicts=named, counts=COUNTS, timeline=failure_timeline,
        reason=reason, text_of=text_of, utc_text=utc_text, counted=counted,
    )  # fmt: skip
    return str(page).lstrip()  # macros leave blank lines


def failure_timeline(verdict: RunVerdict) -> FailureTimeline:
    """The candidates by rank, where they name one, else by log; over time where all have one. A log without any has a
    row, too: a rank that says nothing may be the one that the others wait for."""
    found = verdict.candidates
    times = [each.time for each in found if each.time is not None]
    start, end = min(times, default=0.0), max(times, default=0.0)
    by_time = len(times) == len(found) and end > start
    lines = {each.log: each.lines for each in verdict.read}
    rows: dict[tuple[int, str], list[tuple[int, float, Candidate]]] = {}
    for number, each in enumerate(found, 1):
        by_line = each.line / max(lines.get(each.log, 0), each.line)
        place = ((each.time or 0) - start) / (end - start) if by_time else by_line
        row = (-1, each.log) if each.rank is None else (each.rank, "")
        rows.setdefault(row, []).append((number, place, each))
    rows.update({(-1, log): [] for log in lines if not any(each.log == log for each in found)})
    ticks = time_ticks(end - start) if by_time else []
    return FailureTimeline([(*row, marks) for row, marks in rows.items()], ticks, start)
