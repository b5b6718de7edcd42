"""What each kind of event of a run means: its state, the use of its time, how loud it is, its text (events.toml).

Whoever reads events.jsonl asks here: monitor, runs, goodput, diagnose, report, notifications and logs."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from dsrun.datafiles import toml_beside

EventLevel = Literal["quiet", "info", "warning", "error"]
TextPieces = tuple[str | list[str], ...]
PROGRESS_S = 60.0
"""Seconds between two events that tell that training goes on."""


@dataclass(frozen=True, kw_only=True)
class EventKind:
    """One kind of event; events.toml says what the fields are."""

    name: str
    when: str = ""
    keys: str = ""
    state: str = "starting"
    over: str = "killed"
    final: bool = False
    use: str | None = None
    level: EventLevel = "info"
    notify: str | None = None
    outcome: Literal["success", "failure"] | None = None
    timed: bool = False
    mark: str | None = None
    label: TextPieces = ()
    text: TextPieces = ()

    @property
    def is_failure(self) -> bool:
        """Whether it tells that an attempt has failed."""
        return self.over == "failed"

    @property
    def is_under_way(self) -> bool:
        """Whether no failure before it counts any more: the run works, again or for the first time, or has come to
        another end."""
        starts = self.state == "starting" and self.use is not None
        return starts or self.state in ("training", "saving")


@cache
def event_kinds() -> Mapping[str, EventKind]:
    """Every kind by its name."""
    return {name: EventKind(name=name, **row) for name, row in toml_beside(__file__).items()}


def kind_of(event: Mapping[str, Any]) -> EventKind:
    """The kind of an event; one without a meaning where it is of a newer dsrun."""
    name = str(event.get("kind"))
    return event_kinds().get(name) or EventKind(name=name)


def level_of(event: Mapping[str, Any]) -> EventLevel:
    """How loud an event is: as its kind, and an error with an exit code that tells of one."""
    return "error" if event.get("exit_code") else kind_of(event).level
