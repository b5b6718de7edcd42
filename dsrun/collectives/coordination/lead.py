"""The leader's part: it waits for all members, has them reach for one another, and runs phase after phase.

Every wait has an end: who has not answered by then is named, and the test goes on without it."""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from dsrun.collectives.coordination.meeting import CONNECT_S, LeaderConnections
from dsrun.collectives.observations import CollectiveMember, CollectiveObservations, GroupResult, NodeFacts, RankResult
from dsrun.collectives.place import MemberPlace
from dsrun.collectives.schedule import CollectivePhase, CollectiveUnit, apart, cover, rounds, units_of
from dsrun.findings.finding import Finding, text_of
from dsrun.launch.coordinator.transport import PeerMessage


@dataclass(frozen=True, kw_only=True)
class CollectiveTimeouts:
    """Seconds that each part may take. `join_s`: until all members are there; `import_s`: until torch is loaded;
    `phase_s`: a phase of few ranks, `all_s` that of all; `grace_s`: what the others get to end after one has failed;
    `answer_s`: what messages need beyond that."""

    join_s: float = 60.0
    import_s: float = 180.0
    phase_s: float = 60.0
    all_s: float = 180.0
    grace_s: float = 5.0
    answer_s: float = 10.0


_FAILED_PAIRS = 2
"""A unit that has failed with so many others is not tried with the rest."""


@dataclass(eq=False)
class CollectiveLead:
    """One test. `port` is where the store of the ranks listens."""

    meeting: LeaderConnections
    place: MemberPlace
    port: int
    limits: CollectiveTimeouts
    notify: Callable[[str], None]

    def __post_init__(self) -> None:
        address = f"{self.place.host}:{self.port}"
        self.seen = CollectiveObservations(count=self.place.count, names=self.place.names, address=address)
        self._local: dict[int, tuple[int, int]] = {}

    def run(self) -> CollectiveObservations:
        self._wait_for_members()
        if self.place.count > 1:
            self._check_reach()
        fit = self._start_ranks(self._fit_members())
        self.seen.units = units_of((index, self.seen.host(index), self.seen.members[index].ranks) for index in fit)
        self._local = dict(enumerate((index, own) for index in fit for own in range(self.seen.members[index].ranks)))
        if self.seen.units and 0 in fit:
            store = {"store": True, "host": self.place.host, "port": self.port}
            self.meeting.send(0, {"tasks": {"0": store}})
            self._run_phases()
        return self.seen

    def _wait_for_members(self) -> None:
        deadline = time.monotonic() + self.limits.join_s
        seen = self.seen
        while sum(bool(member.address) for member in seen.members.values()) + len(seen.lost) < seen.count:
            event = self.meeting.next(deadline)
            if event is None:
                break
            index, message = event
            if message is None:
                self._lose(index, text_of("node_lost.before"))
            elif "facts" in message:
                seen.members[index] = CollectiveMember(
                    index=index,
                    facts=NodeFacts.from_dict(message["facts"]),
                    ranks=int(message["ranks"]),
                    device=str(message["device"]),
                    ahead_s=float(message["ahead_s"]),
                    findings=tuple(Finding(**found) for found in message.get("findings", ())),
                )
            elif "endpoints" in message:
                endpoints = tuple((str(host), int(port)) for host, port in message["endpoints"])
                seen.members[index] = replace(seen.members[index], address=str(message["address"]), endpoints=endpoints)
        seen.missing = [index for index in range(seen.count) if index not in seen.members and index not in seen.lost]
        seen.members = dict(sorted(seen.members.items()))

    def _check_reach(self) -> None:
        members = self._present()
        for index in members:
            peers = [[peer, self.seen.members[peer].endpoints] for peer in members if peer != index]
            self.meeting.send(index, {"peers": peers})
        # Each member has up to three endpoints, and 64 of them are tried at a time (member.py).
        rounds_of_threads = 1 + len(members) * 3 // 64
        deadline = time.monotonic() + CONNECT_S * rounds_of_threads + self.limits.answer_s
        waiting, when = set(members), text_of("node_lost.connecting")
        while waiting and (event := self.meeting.next(deadline)) is not None:
            index, message = event
            if message is None:
                self._lose(index, when)
                waiting.discard(index)
            elif "unreachable" in message:
                waiting.discard(index)
                found = message["unreachable"]
                self.seen.unreachable += [(index, int(peer), str(place), str(why)) for peer, place, why in found]
        for index in waiting:
            self._lose(index, text_of("node_lost.silent", when=when), left=False)

    def _fit_members(self) -> list[int]:
        """Those whose ranks can take part: they have torch, the device of the others, and reach the ranks' store."""
        members = self.seen.members
        present = [index for index in self._present() if members[index].facts.torch]
        devices = Counter(members[index].device for index in present)
        device = "cuda" if devices["cuda"] else "cpu"
        cut_off = {index for index, peer, _, _ in self.seen.unreachable if peer == 0}
        return [index for index in present if members[index].device == device and index not in cut_off]

    def _start_ranks(self, members: list[int]) -> list[int]:
        """The members whose ranks' programs all run."""
        several = len({self.seen.host(index) for index in members}) > 1 or self.place.count > 1
        waiting = {index: set(range(self.seen.members[index].ranks)) for index in members}
        for index in members:
            self.meeting.send(index, {"start": {"several": several}})
        deadline = time.monotonic() + self.limits.import_s
        while any(waiting.values()) and (event := self.meeting.next(deadline)) is not None:
            index, message = event
            if message is None:
                self._lose(index, text_of("node_lost.loading"))
                waiting.pop(index, None)
            elif "ready" in message:
                waiting.get(index, set()).discard(int(message["local"]))
                nccl = str(message["ready"].get("nccl") or "")
                member = self.seen.members[index]
                torch = str(message["ready"].get("torch") or member.facts.torch)
                self.seen.members[index] = replace(member, facts=replace(member.facts, nccl=nccl, torch=torch))
            elif "ended" in message:
                self.seen.unready[index] = str(message["ended"])
                waiting.pop(index, None)
        for index, ranks in waiting.items():
            if ranks:
                self.seen.unready[index] = text_of("ranks_not_started.slow", seconds=self.limits.import_s)
        return [index for index in members if index in waiting and index not in self.seen.unready]

    def _run_phases(self) -> None:
        """Alone; in pairs those that came through; then all that no failure speaks against."""
        units = self.seen.units
        self._run("alone", [(unit,) for unit in units], self.limits.phase_s)
        fit = [group.units[0] for group in self.seen.of("alone") if group.ok]
        unfit = {frozenset((a, b)) for a, b, _, _ in self.seen.unreachable}
        failed: list[frozenset[int]] = [
            frozenset((a, b)) for a in range(len(fit)) for b in range(a) if apart((fit[a], fit[b]), unfit)
        ]
        for pairs in rounds(len(fit)):
            counts = Counter(number for pair in failed for number in pair)
            given_up = {number for number, count in counts.items() if count >= _FAILED_PAIRS}
            chosen = [pair for pair in pairs if frozenset(pair) not in failed and not given_up.intersection(pair)]
            groups = [(fit[a], fit[b]) for a, b in chosen]
            if groups:
                results = self._run("pairs", groups, self.limits.phase_s)
                failed += [frozenset(pair) for pair, result in zip(chosen, results, strict=True) if not result.ok]
        accused = set(cover(failed))
        remaining = tuple(unit for number, unit in enumerate(fit) if number not in accused)
        if len(remaining) > 1:
            self._run("all", [remaining], self.limits.all_s)

    def _run(self, kind: Any, groups: Iterable[tuple[CollectiveUnit, ...]], timeout_s: float) -> list[GroupResult]:
        number = len({group.phase.number for group in self.seen.groups})
        phase = CollectivePhase(kind, number, tuple(groups))
        self.notify(_title(phase))
        tasks: dict[int, dict[str, PeerMessage]] = {}
        group_of: dict[int, int] = {}
        for place, group in enumerate(phase.groups):
            ranks = [rank for unit in group for rank in unit.ranks]
            for group_rank, rank in enumerate(ranks):
                member, local = self._local[rank]
                group_of[rank] = place
                tasks.setdefault(member, {})[str(local)] = {
                    "phase": number,
                    "rank": rank,
                    "group": f"phase-{number}-group-{place}",
                    "group_rank": group_rank,
                    "group_size": len(ranks),
                    "operations": phase.operations,
                    "compute": phase.kind == "alone",
                    "timeout_s": timeout_s,
                    "host": self.place.host,
                    "port": self.port,
                }
        for member, own in tasks.items():
            self.meeting.send(member, {"tasks": own})
        results = self._collect_results(number, group_of, timeout_s)
        found = [
            GroupResult(phase, group, {rank: results[rank] for unit in group for rank in unit.ranks})
            for group in phase.groups
        ]
        self.seen.groups += found
        return found

    def _collect_results(self, number: int, group_of: dict[int, int], timeout_s: float) -> dict[int, RankResult]:
        """By rank; a group in which one has failed is ended a little later."""
        found: dict[int, RankResult] = {
            rank: RankResult(state="lost") for rank in group_of if self._local[rank][0] in self.seen.lost
        }
        ends: dict[int, float] = {}
        deadline = time.monotonic() + timeout_s + self.limits.answer_s
        while len(found) < len(group_of):
            event = self.meeting.next(min([deadline, *ends.values()]))
            now = time.monotonic()
            if event is not None:
                for rank, result in self._results_of(event, number, group_of):
                    found.setdefault(rank, result)
                    if result.state != "ok":
                        ends.setdefault(group_of[rank], now + self.limits.grace_s)
            if now >= deadline:
                break
            for group in [group for group, end in ends.items() if now >= end]:
                self._cancel(rank for rank, own in group_of.items() if own == group and rank not in found)
                ends[group] = deadline
        return {rank: found.get(rank, RankResult(state="hung")) for rank in group_of}

    def _results_of(
        self, event: tuple[int, PeerMessage | None], number: int, group_of: dict[int, int]
    ) -> list[tuple[int, RankResult]]:
        index, message = event
        if message is None:
            self._lose(index, text_of("node_lost.testing"))
            return [(rank, RankResult(state="lost")) for rank in group_of if self._local[rank][0] == index]
        if message.get("phase") == number:
            return [(int(message["rank"]), RankResult.from_message(message))]
        if "ended" in message:
            self.seen.unready[index] = error = str(message["ended"])
            ended = (index, int(message["local"]))
            return [(rank, RankResult(state="died", error=error)) for rank in group_of if self._local[rank] == ended]
        return []

    def _cancel(self, ranks: Iterable[int]) -> None:
        locals_of: dict[int, list[int]] = {}
        for rank in ranks:
            member, local = self._local[rank]
            locals_of.setdefault(member, []).append(local)
        for member, locals_ in locals_of.items():
            self.meeting.send(member, {"cancel": locals_})

    def _present(self) -> list[int]:
        return [index for index in self.seen.members if index not in self.seen.lost]

    def _lose(self, index: int, when: str, *, left: bool = True) -> None:
        how = text_of("node_lost.left", when=when) if left else when
        self.seen.lost.setdefault(index, how)


def _title(phase: CollectivePhase) -> str:
    if phase.kind == "all":
        count = sum(len(unit.ranks) for unit in phase.groups[0])
        return f"all {count} ranks together"
    if phase.kind == "alone":
        return f"{len(phase.groups)} one by one"
    return (
        "in pairs: "
        + ", ".join(" and ".join(unit.name for unit in group) for group in phase.groups[:4])
        + (f" and {len(phase.groups) - 4} more" if len(phase.groups) > 4 else "")
    )
