"""The tables of docs/reliability.md, from the results of a whole run of the cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.faults.cells import PHASES
from tests.faults.harness import Result

BEGIN, END = "<!-- results: python -m tests.faults --write -->", "<!-- end of results -->"
LEGEND = """\
Each field holds the exit code of the first command and, after an arrow, that of the same command given again; then
the detection time. 0: the run continued by itself and completed; 75: it stopped on the signal, with a checkpoint if
training had begun; 143: a second signal ended it at once; 1 and 2: it failed and gave the reason; -9: the command
itself was killed."""


def tables(results: Sequence[Result]) -> str:
    """Faults at points of the run as a matrix of fault × phase; damage and environment as a list."""
    cells = [each for each in results if "@" in each.name]
    others = [each for each in results if "@" not in each.name]
    return f"{LEGEND}\n\n{_matrix(cells)}\n\n{_list(others)}"


def summary(results: Sequence[Result]) -> str:
    """How many recovered, and the slowest detection."""
    good = sum(not each.wrong for each in results)
    detected = [each.detected_s for each in results if each.detected_s is not None]
    text = f"{good} of {len(results)} cells pass"
    return text + (f"; slowest detection: {max(detected):.1f} s" if detected else "")


def _matrix(cells: Iterable[Result]) -> str:
    found: dict[str, dict[str, Result]] = {}
    for each in cells:
        fault, _, phase = each.name.partition("@")
        found.setdefault(fault.replace("-", " "), {})[phase] = each
    rows = [
        [fault, *(_field(by_phase[phase]) if phase in by_phase else "" for phase in PHASES)]
        for fault, by_phase in found.items()
    ]
    return _rows(["fault", *PHASES], rows)


def _list(others: Iterable[Result]) -> str:
    rows = [[each.name.replace("-", " "), _field(each), each.cause or ""] for each in others]
    return _rows(["damage or environment", "exit codes", "cause"], rows)


def _field(result: Result) -> str:
    text = " → ".join(map(str, result.codes))
    if result.detected_s is not None:
        text += f", {result.detected_s:.1f} s"
    return text + (f" **{result.wrong[0]}**" if result.wrong else "")


def _rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
