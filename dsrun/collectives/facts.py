"""What each node has: host, driver, versions, wheel and GPUs; and in what the nodes differ. torch is not imported."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, Literal, Self

from dsrun.findings.finding import Finding
from dsrun.findings.texts import finding_of
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
