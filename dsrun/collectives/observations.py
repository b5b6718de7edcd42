"""What the test has seen: members, connections, and how each phase went on each rank. Plain values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self

from dsrun.collectives.facts import NodeFacts
from dsrun.collectives.operations import average_bandwidths
from dsrun.collectives.schedule import CollectivePhase, CollectiveUnit
from dsrun.findings.finding import Finding
from dsrun.findings.texts import text_of

MemberState = Literal["ok", "failed", "died", "hung", "lost"]
STAGES = ("start", "connect", "compute", "broadcast", "all_reduce", "all_gather", "reduce_scatter", "end")
"""Where a rank may be in a phase, in this order."""


@dataclass(frozen=True, kw_only=True)
class CollectiveMember:
    """A process of the doctor on one node, or a task of srun. `ahead_s` is how far its clock is ahead of the
    leader's; `address` and `endpoints` are where the others reach it; `findings` are those of its own checks."""

    index: int
    facts: NodeFacts
    ranks: int
    device: str
    ahead_s: float = 0.0
    address: str = ""
    endpoints: tuple[tuple[str, int], ...] = ()
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RankResult:
    """How a phase went on one rank. `at` is the last stage it began; `cancelled`: it was ended as others had failed."""

    state: MemberState
    at: str = "start"
    cancelled: bool = False
    signal: int | None = None
    error: str = ""
    compute_s: float | None = None
    flop: float | None = None
    measured: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    wrong: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Self:
        """From a rank program's answer."""
        return cls(**{each.name: message[each.name] for each in fields(cls) if each.name in message})

    @property
    def stage(self) -> int:
        """The number of the last stage."""
        return STAGES.index(self.at) if self.at in STAGES else 0


@dataclass(frozen=True)
class GroupResult:
    """How a phase went in one group of units, by rank."""

    phase: CollectivePhase
    units: tuple[CollectiveUnit, ...]
    ranks: Mapping[int, RankResult]

    @property
    def ok(self) -> bool:
        """Whether all its ranks came to the end."""
        return all(each.state == "ok" for each in self.ranks.values())

    @property
    def bandwidths(self) -> dict[str, float]:
        """busbw by operation in GB/s."""
        return average_bandwidths([each.measured for each in self.ranks.values()]) if len(self.ranks) > 1 else {}

    def best_s(self, operation: str) -> float | None:
        """Seconds of the fastest call on the slowest rank; unlike the mean it is hardly disturbed by other work."""
        times = [each.measured[operation]["best"] for each in self.ranks.values() if operation in each.measured]
        return max(times, default=None)


@dataclass
class CollectiveObservations:
    """`missing` members did not join; `lost` ones left, with what was going on; `unready` ranks' programs did not
    start, by member; `unreachable` has (from, to, endpoint, why)."""

    count: int
    names: Sequence[str] = ()
    address: str = ""
    members: dict[int, CollectiveMember] = field(default_factory=dict)
    missing: list[int] = field(default_factory=list)
    lost: dict[int, str] = field(default_factory=dict)
    unreachable: list[tuple[int, int, str, str]] = field(default_factory=list)
    unready: dict[int, str] = field(default_factory=dict)
    units: list[CollectiveUnit] = field(default_factory=list)
    groups: list[GroupResult] = field(default_factory=list)

    def name(self, index: int) -> str:
        """What a member is called, whether it has joined or not: "node 2 (gpu03)"."""
        host = self.host(index)
        return (
            text_of("node_missing.host", index=index, host=host) if host else text_of("node_missing.node", index=index)
        )

    def host(self, index: int) -> str:
        """The host of a member, "" where it is not known."""
        if index in self.members:
            return self.members[index].facts.host
        return self.names[index] if index < len(self.names) else ""

    def host_of_rank(self, rank: int) -> str:
        """The host that a rank runs on."""
        return next((self.host(unit.members[0]) for unit in self.units if rank in unit.ranks), "")

    def rank_name(self, rank: int) -> str:
        """ "rank 5 on gpu03"."""
        if len(self.hosts) > 1:
            return text_of("rank_died.place", rank=rank, host=self.host_of_rank(rank))
        return f"rank {rank}"

    @property
    def hosts(self) -> list[str]:
        """The hosts of the members that have joined."""
        return list(dict.fromkeys(member.facts.host for member in self.members.values()))

    def of(self, kind: str) -> list[GroupResult]:
        """The results of the phases of one kind."""
        return [group for group in self.groups if group.phase.kind == kind]
