"""What the child process that loads and runs a wheel's operations told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from dsrun.findings import Finding
from dsrun.wheel.inspect.contents import WheelReport

Result = Literal["ran", "loaded", "failed"]

# A program of its own: only a child process loads torch, and its source is sent to nodes that have no dsrun.
PROVE = Path(__file__).with_name("run_ops.py")

# With these findings installing or importing is bound to fail, and saying so once is enough.
_HOPELESS = frozenset(
    {
        "python_tag",
        "platform_tag",
        "platform_code",
        "torch_missing",
        "torch_version",
        "torch_cuda",
        "cxx11_abi",
    }
)


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What became of one operation: "ran" once with a right result, "loaded" only, or "failed", with the details."""

    op: str
    result: Result
    what: str
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)


def can_prove(report: WheelReport, findings: Iterable[Finding]) -> bool:
    """Whether the wheel has operations, and nothing is known that keeps them from loading."""
    hopeless = any(each.code in _HOPELESS for each in findings)
    return bool(report.accelerator and report.installed_ops and not hopeless)


def arguments(report: WheelReport, site: str | None) -> list[str]:
    """The command line of dsrun/wheel/verify/run_ops.py; `site` is the folder to import DeepSpeed from, if any."""
    place = ["--site", site] if site else []
    return [*place, "--accelerator", str(report.accelerator), *report.installed_ops]


def proofs_from(told: Mapping[str, Any]) -> tuple[Proof, ...]:
    """The proofs in the child's JSON object."""
    return tuple(
        Proof(op=str(name), result=each["result"], what=str(each["what"]), seconds=float(each["seconds"]))
        for name, each in told["ops"].items()
    )


def judge(told: Mapping[str, Any], proofs: Sequence[Proof], where: str) -> list[Finding]:
    """An error for every operation that failed, and for an import that did."""
    found = [
        Finding(level="error", code="op_fails", message=f"{proof.op}: {proof.what}", where=where)
        for proof in proofs
        if proof.result == "failed"
    ]
    if told.get("error"):
        found.append(Finding(level="error", code="import_fails", message=str(told["error"]), where=where))
    return found
