"""What each node has (host, driver, versions, wheel and GPUs; torch is not imported), in what the nodes differ, and
what the test has seen: members, connections, and how each phase went on each rank. Plain values."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self

from dsrun.collectives.schedule import CollectivePhase, CollectiveUnit, average_bandwidths
from dsrun.findings.finding import Finding, finding_of, text_of
from dsrun.machine.gpus import visible_gpus
from dsrun.machine.node_comparison import NodeDifference, compared
from dsrun.machine.nvml import NvmlError, nvml_session
from dsrun.system.host import hostname, versions

MAX_SKEW_S = 2.0
"""Clocks further apart confuse whoever compares logs and files' times; file servers take newer files for older ones."""


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """One node, "" for what it does not have. `wheel` is a hash of the installed DeepSpeed's list of files, which
    differs between two builds of one version; `nccl` is known once torch has been imported."""

    host: str
    python: str = ""
    torch: str = ""
    nccl: str = ""
    deepspeed: str = ""
    dsrun: str = ""
    wheel: str = ""
    driver: str = ""
    gpus: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Self:
        """The inverse of `asdict`; unknown keys are ignored, as those of another version of dsrun."""
        values = {each.name: str(found.get(each.name, "")) for each in fields(cls) if each.name != "gpus"}
        return cls(**values, gpus=tuple(map(str, found.get("gpus", ()))))


def node_facts() -> NodeFacts:
    return NodeFacts(
        host=os.environ.get("SLURMD_NODENAME") or hostname(),
        **versions(("dsrun", "torch", "deepspeed")),
        wheel=_wheel_hash(),
        driver=_driver(),
        gpus=tuple(gpu.name for gpu in visible_gpus()),
    )


def _wheel_hash() -> str:
    """The first digits of a hash of RECORD in the installed DeepSpeed, which has the hash of every file in it."""
    from importlib import metadata

    with suppress(metadata.PackageNotFoundError):
        record = metadata.distribution("deepspeed").read_text("RECORD")
        # Compiled Python files are listed by some installers, and differ from machine to machine.
        lines = sorted(
            line for line in (record or "").splitlines() if ".pyc," not in line and ".dist-info/" not in line
        )
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12] if lines else ""
    return ""


def _driver() -> str:
    with suppress(NvmlError), nvml_session() as nvml:
        return str(nvml.call("nvmlSystemGetDriverVersion"))
    return ""


# What must be the same on all nodes, and what should be. NCCL's versions do not talk to one another, torch's and
# DeepSpeed's may call collectives in another order, and dsrun's supervisors refuse each other.
COMPARED: dict[str, Literal["error", "warning"]] = {
    **dict.fromkeys(("torch", "nccl", "deepspeed", "dsrun"), "error"),
    **dict.fromkeys(("python", "wheel", "driver", "gpus"), "warning"),
}


def shown(facts: NodeFacts, name: str) -> str:
    """One fact for people: "2 x A100", "2.13.0", "-"."""
    value = getattr(facts, name)
    if isinstance(value, tuple):
        return ", ".join(f"{count} x {gpu}" for gpu, count in Counter(value).items()) or "-"
    return value or "-"


def differing(nodes: Sequence[NodeFacts]) -> list[str]:
    """The names of the facts in which the nodes differ."""
    return [each.fact for each in _differing({str(index): facts for index, facts in enumerate(nodes)})]


def _differing(nodes: Mapping[str, NodeFacts]) -> list[NodeDifference]:
    found = compared({node: {name: shown(facts, name) for name in COMPARED} for node, facts in nodes.items()})
    # Another version is always another wheel.
    return [each for each in found if each.fact != "wheel" or "deepspeed" not in {other.fact for other in found}]


def differences(nodes: Mapping[str, NodeFacts], skew_s: Mapping[str, float]) -> Iterator[tuple[Finding, list[str]]]:
    """What differs between nodes, by their names, and which of them are in the minority; `skew_s` is how far each
    clock is ahead of the first node's, in seconds."""
    for each in _differing(nodes):
        level, others = COMPARED[each.fact], each.minority
        yield each.finding(level, ", ".join(others)), others if level == "error" else []
    for node, ahead in skew_s.items():
        if abs(ahead) > MAX_SKEW_S:
            key = "clock_skew.ahead" if ahead > 0 else "clock_skew.behind"
            yield finding_of(key, node=node, seconds=abs(ahead), where=node), []


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
