"""The table of docs/reliability.md, from the results of a whole run of the cells."""

from __future__ import annotations

from collections.abc import Sequence

from tests.faults.harness import Result

BEGIN, END = "<!-- results: python -m tests.faults --write -->", "<!-- end of results -->"


def table(results: Sequence[Result]) -> str:
    """One row per fault, one column per phase: what happened and how soon it was noticed."""
    rows = ["| fault | where | exit codes | cause | noticed after | took |", "|---|---|---|---|---|---|"]
    for each in results:
        fault, _, phase = each.name.partition("@")
        codes = ", ".join(map(str, each.codes))
        noticed = "" if each.detected_s is None else f"{each.detected_s:.1f} s"
        verdict = "" if not each.wrong else f" **{each.wrong[0]}**"
        columns = [
            fault.replace("-", " ") + verdict,
            phase,
            codes,
            each.cause or "",
            noticed,
            f"{each.seconds:.0f} s",
        ]
        rows.append("| " + " | ".join(columns) + " |")
    return "\n".join(rows)


def summary(results: Sequence[Result]) -> str:
    """How many recovered, and the slowest detection."""
    good = sum(not each.wrong for each in results)
    noticed = [each.detected_s for each in results if each.detected_s is not None]
    words = f"{good} of {len(results)} cells end as they have to"
    return words + (f"; slowest to be noticed: {max(noticed):.1f} s" if noticed else "")
