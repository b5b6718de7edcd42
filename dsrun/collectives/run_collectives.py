"""One test of the collectives, as each process of the doctor runs it."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dsrun.collectives.coordination.lead import CollectiveLead, CollectiveTimeouts
from dsrun.collectives.coordination.meeting import LeaderConnections, LeaderUnreachable
from dsrun.collectives.coordination.member import take_part
from dsrun.collectives.judge import CollectiveVerdict, judge
from dsrun.collectives.observations import CollectiveObservations
from dsrun.collectives.place import MemberPlace
from dsrun.errors import EXIT_FINDINGS, EXIT_TOOL_FAILED
from dsrun.findings.finding import Finding, finding_of, text_of
from dsrun.launch.coordinator.messages import shared_key
from dsrun.launch.coordinator.transport import allow_open_files, listen
from dsrun.system.net import claim_port, free_port
from dsrun.system.terminal.display import NotePrinter

BY_HAND_S = 300.0
"""Seconds that nodes wait for each other which somebody starts one after the other."""


@dataclass(frozen=True)
class CollectiveOutcome:
    """How the test ended here. On the leader with all that was `seen`; elsewhere `finding` says what this member alone
    knows."""

    exit_code: int
    seen: CollectiveObservations | None = None
    verdict: CollectiveVerdict | None = None
    finding: Finding | None = None


def run_test(
    place: MemberPlace,
    *,
    secret: str | None,
    limits: CollectiveTimeouts | None,
    notify: NotePrinter,
    findings: Sequence[Finding] = (),
) -> CollectiveOutcome:
    """Take part in the test, and lead it as member 0; `findings` are those of this node's own checks."""
    limits = limits or CollectiveTimeouts(join_s=BY_HAND_S if place.by_hand else CollectiveTimeouts.join_s)
    key = shared_key(run=place.run, secret=secret)
    port = place.port or 0
    try:
        if place.index == 0:
            return _lead(place, key, limits, notify, findings)
        end = take_part(place, port, key, timeout_s=limits.join_s, notify=notify, findings=findings)
    except LeaderUnreachable as error:
        found = finding_of(
            "tcp_unreachable.first",
            index=place.index,
            host=place.host,
            port=port + 1,
            why=str(error),
            fix=text_of("tcp_unreachable.itself") if place.index == 0 else None,
            where=place.host,
        )
        return CollectiveOutcome(EXIT_FINDINGS, finding=found)
    return CollectiveOutcome(int(end["end"]))


def _lead(
    place: MemberPlace, key: bytes, limits: CollectiveTimeouts, notify: NotePrinter, findings: Sequence[Finding]
) -> CollectiveOutcome:
    """The leader's test in a thread, and its own part as a member here: the kernel ends a process that is tied to its
    parent when the thread that has started it ends."""
    port = claim_port(place.port, find=None) if place.port else free_port()
    place = replace(place, port=port)
    allow_open_files(place.count)
    meeting = LeaderConnections(listen(place.host, port + 1), place.count, key)
    found: list[CollectiveObservations | BaseException] = []

    def lead() -> None:
        code = EXIT_TOOL_FAILED
        try:
            seen = CollectiveLead(meeting, place, port, limits, notify).run()
            found.append(seen)
            code = EXIT_FINDINGS if judge(seen).failed else 0
        except BaseException as error:
            found.append(error)
        meeting.send_all({"end": code})

    thread = threading.Thread(target=lead, name="lead", daemon=True)
    thread.start()
    try:
        take_part(place, port, key, timeout_s=limits.join_s, notify=notify, findings=findings)
        thread.join()
    finally:
        meeting.end()
    (seen,) = found
    if isinstance(seen, BaseException):
        raise seen
    verdict = judge(seen)
    return CollectiveOutcome(EXIT_FINDINGS if verdict.failed else 0, seen, verdict)
