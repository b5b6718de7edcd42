"""`dsrun runs`: all runs of a folder in one table."""

from pathlib import Path
from typing import Any, get_args

from dsrun.cli.output import evaluated, print_json, print_table
from dsrun.datafiles import toml_beside
from dsrun.errors import UsageError, did_you_mean
from dsrun.monitoring.overview import RunRow, runs_of, sort_rows
from dsrun.monitoring.run_status import RunState, status_json
from dsrun.system.terminal.display import duration, figure
from dsrun.system.terminal.stderr import print_note

_COLUMNS = toml_beside(__file__)["columns"]


def show(*, folder: str | None, order: str, state: str | None, no_size: bool, form: str) -> int:
    states = _states(state)
    place = Path(folder) if folder is not None else Path("runs") if Path("runs").is_dir() else Path()
    rows = sort_rows(runs_of(place, with_size=not no_size), order)
    shown = [row for row in rows if not states or row.status.state in states]
    if form == "json":
        print_json({"folder": place, "runs": [as_json(row) for row in shown]})
        return 0
    if shown:
        drop = [[*_COLUMNS].index("SIZE")] if no_size else []
        table = [[*_COLUMNS], *map(_cells, shown)]
        print_table([[cell for place, cell in enumerate(row) if place not in drop] for row in table])
    if len(shown) < len(rows):
        print_note(f"{len(rows) - len(shown)} of {len(rows)} runs are in other states than {state}")
    return 0


def _states(state: str | None) -> set[str]:
    """The states that --state names. Raises UsageError for one that there is not."""
    if state is None:
        return set()
    known = get_args(RunState)
    named = [each.strip().lower() for each in state.split(",") if each.strip()]
    for each in named:
        if each not in known:
            fix = did_you_mean(each, known, f"states: {', '.join(known)}")
            raise UsageError(f"--state: {each!r} is not a state of a run", fix=fix)
    return set(named)


def as_json(row: RunRow) -> dict[str, Any]:
    """A row as docs/monitor.md describes it. What takes all of a run's events to know is left to dsrun monitor."""
    return {"name": row.name, "gpus": list(row.gpus), "bytes": row.bytes, **status_json(row.status)}


def _cells(row: RunRow) -> list[str]:
    names = ", ".join(sorted({name.removeprefix("NVIDIA ") for name in row.gpus}))
    more = {"status": row.status, "names": names, "duration": duration, "figure": figure}
    return [*evaluated(_COLUMNS, row=row, **more).values()]
