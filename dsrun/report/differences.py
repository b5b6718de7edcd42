"""What differs between runs: their settings, and what they ran on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsrun.report.data import DEFAULT, RunReport

MISSING = "—"
# Where a run is written to, and when, says nothing about what it computes.
_ABOUT_THE_RUN = frozenset(
    {"output", "run_name", "config", "master_port", "find_port", "resume", "force", "logging_dir"}
)
_ABOUT_THE_FOLDER = frozenset({"folder", "command"})


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A setting or fact, and its value in each run; "—" where a run has none."""

    name: str
    kind: str
    values: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON: null where a run has none."""
        values = [None if value == MISSING else value for value in self.values]
        return {"name": self.name, "kind": self.kind, "values": values}


def differences(runs: Sequence[RunReport]) -> tuple[Difference, ...]:
    """What is not the same in all runs: settings first, those that somebody gave before the others."""
    settings = [{each.name: each.value for each in run.settings if each.name not in _ABOUT_THE_RUN} for run in runs]
    facts = [{name: value for name, value in run.environment if name not in _ABOUT_THE_FOLDER} for run in runs]
    given = {each.name for run in runs for each in run.settings if each.source != DEFAULT}
    found = _differing("setting", settings)
    return (
        *(each for each in found if each.name in given),
        *(each for each in found if each.name not in given),
        *_differing("environment", facts),
    )


def _differing(kind: str, several: Sequence[Mapping[str, str]]) -> list[Difference]:
    # A run of which nothing is known differs in everything, which tells nothing.
    known = [values for values in several if values]
    names = {name: None for values in known for name in values}
    rows = [(name, tuple(values.get(name, MISSING) for values in several)) for name in names]
    differing = {name for name in names if len({values.get(name) for values in known}) > 1}
    return [Difference(name=name, kind=kind, values=values) for name, values in rows if name in differing]
