"""When failures speak against a node, so that the next start of a SLURM job had better avoid it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from dsrun.diagnosis.rules import cause_named
from dsrun.errors import EXIT_MISSING
from dsrun.launch.supervisor.policy import AttemptFailure

REPEATED = 2
"""So many failures that alone could be the program's fault are evidence against the node that had them all."""
_MOST_SUSPECTS = 2
"""Where they came on more nodes than that, it is the program that fails."""


def evidence_against(failure: AttemptFailure, events: Iterable[Mapping[str, Any]]) -> str | None:
    """What speaks against the node of `failure`, "a hardware error" or "2 failures"; None for nothing.

    `events` are those of the run folder, with this failure and those of earlier starts of the job.
    """
    cause, events = cause_named(failure.cause), list(events)
    if cause.faulty_node or (failure.exit_code == EXIT_MISSING and _has_failed(failure.host, events)):
        return "a hardware error"
    if not cause.suspect_node or not failure.host:
        return None
    counts = Counter(
        str(event["failed_host"])
        for event in events
        if event.get("kind") == "failure"
        and "failed_host" in event
        and cause_named(str(event.get("cause", ""))).suspect_node
    )
    suspects = [host for host, count in counts.items() if count >= REPEATED]
    if failure.host not in suspects or len(suspects) > _MOST_SUSPECTS:
        return None
    return f"{counts[failure.host]} failures"


def _has_failed(host: str, events: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the hardware of `host` has failed before: the next attempt there may find no GPU any more."""
    causes = (str(each.get("cause", "")) for each in events if host and each.get("failed_host") == host)
    return any(cause_named(cause).faulty_node for cause in causes)
