"""A wheel against this machine: what it says of itself, whether that fits here, and whether its operations run."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from dsrun.errors import ToolError
from dsrun.findings import Finding
from dsrun.system.capture import Answer, ask
from dsrun.wheel.inspect.archive import check_archive, open_wheel
from dsrun.wheel.inspect.contents import WheelReport, read_archive
from dsrun.wheel.target.ops import all_ops
from dsrun.wheel.verify.compatibility import compare, compare_with_gpus
from dsrun.wheel.verify.machine import Gpu, Machine, last_object, this_machine

Result = Literal["ran", "loaded", "failed"]

# A program of its own: only a child process loads torch, and its source is sent to nodes that have no dsrun.
RUN_OPS = Path(__file__).with_name("run_ops.py")

# With these findings installing or importing is bound to fail, and saying so once is enough.
_HOPELESS = frozenset(
    [
        "python_tag",
        "platform_tag",
        "platform_code",
        "torch_missing",
        "torch_version",
        "torch_cuda",
        "cxx11_abi",
    ]
)


@dataclass(frozen=True, kw_only=True)
class OpResult:
    """What became of one operation: "ran" once with a right result, "loaded" only, or "failed", with the details."""

    op: str
    result: Result
    what: str
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)


def can_smoke_test(report: WheelReport, findings: Iterable[Finding]) -> bool:
    """Whether the wheel has operations, and nothing is known that keeps them from loading."""
    hopeless = any(each.code in _HOPELESS for each in findings)
    return bool(report.accelerator and report.installed_ops and not hopeless)


def arguments(report: WheelReport, site: str | None) -> list[str]:
    """The command line of dsrun/wheel/verify/run_ops.py; `site` is the folder to import DeepSpeed from, if any."""
    place = ["--site", site] if site else []
    return [*place, "--accelerator", str(report.accelerator), *report.installed_ops]


def op_results_from(told: Mapping[str, Any]) -> tuple[OpResult, ...]:
    """The proofs in the child's JSON object."""
    return tuple(
        OpResult(op=str(name), result=each["result"], what=str(each["what"]), seconds=float(each["seconds"]))
        for name, each in told["ops"].items()
    )


def op_findings(told: Mapping[str, Any], op_results: Sequence[OpResult], where: str) -> list[Finding]:
    """An error for every operation that failed, and for an import that did."""
    found = [
        Finding(level="error", code="op_fails", message=f"{op_result.op}: {op_result.what}", where=where)
        for op_result in op_results
        if op_result.result == "failed"
    ]
    if told.get("error"):
        found.append(Finding(level="error", code="import_fails", message=str(told["error"]), where=where))
    return found


INSTALL_SECONDS = 600
RUN_OPS_SECONDS = 900


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What is known of a wheel, and of one machine with it. `machine` None: compared with GPUs alone."""

    report: WheelReport
    findings: tuple[Finding, ...]
    machine: Machine | None = None
    op_results: tuple[OpResult, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether something is wrong."""
        return any(each.level == "error" for each in self.findings)


def examine(path: Path) -> tuple[WheelReport, list[Finding]]:
    """Read the wheel, and check its content against its own RECORD. Raises UsageError as `read_wheel` does."""
    with open_wheel(path) as archive:
        return read_archive(archive), check_archive(archive)


def gpu_ops() -> frozenset[str]:
    """The operations whose kernels run on the GPU, in any version of DeepSpeed that dsrun knows."""
    return frozenset(op.name for op in all_ops() if op.code == "cuda")


def needed_libraries(report: WheelReport) -> tuple[str, ...]:
    """Every shared library that one of the wheel's own asks for, except those it brings."""
    brought = {Path(library.path).name for library in report.libraries}
    return tuple(sorted({name for library in report.libraries for name in library.needed} - brought))


def verify_for(path: Path, gpus: Sequence[Gpu]) -> Verification:
    """The wheel against GPUs, without regard to this machine."""
    report, findings = examine(path)
    return Verification(report=report, findings=(*findings, *compare_with_gpus(report, gpus, gpu_ops())))


def verify_here(path: Path, *, python: str, prove: bool = True) -> Verification:
    """The wheel against this machine and the environment of the interpreter `python`.

    With torch there, and nothing found that forbids it, the wheel is installed into a folder of its own and each
    operation runs once in a child process. Nothing that is installed is touched.
    """
    report, findings = examine(path)
    machine = this_machine(needed_libraries(report), python)
    findings += compare(report, machine, gpu_ops=gpu_ops())
    op_results: tuple[OpResult, ...] = ()
    if prove and can_smoke_test(report, findings):
        op_results, failures = _smoke_test(report, python, machine.node)
        findings += failures
    return Verification(report=report, findings=tuple(findings), machine=machine, op_results=op_results)


def _smoke_test(report: WheelReport, python: str, where: str) -> tuple[tuple[OpResult, ...], list[Finding]]:
    with tempfile.TemporaryDirectory(prefix="dsrun-smoke-test-") as folder:
        try:
            _install(report.path, python, Path(folder))
            answer = ask([python, str(RUN_OPS), *arguments(report, folder)], seconds=RUN_OPS_SECONDS)
            told = last_object(answer, "loading the operations")
        except ToolError as error:
            return (), [Finding(level="error", code="import_fails", message=error.message, where=where)]
    op_results = op_results_from(told)
    return op_results, op_findings(told, op_results, where)


def _install(wheel: Path, python: str, folder: Path) -> None:
    """What pip does with the wheel, into `folder`; where the environment has no pip, its files alone."""
    command = [python, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet"]
    alone = ["--no-deps", "--no-index", "--no-compile", "--target", str(folder)]
    answer = ask([*command, *alone, os.fspath(wheel)], seconds=INSTALL_SECONDS)
    if answer.exit_code == 0:
        return
    if "No module named pip" not in answer.stderr:
        raise ToolError(f"pip: {reason(answer)}")
    with open_wheel(wheel) as archive:
        archive.unpack(folder)


def reason(answer: Answer) -> str:
    """The line of stderr that says why a program failed."""
    lines = [line.strip() for line in answer.stderr.splitlines() if line.strip()]
    wrong = [line for line in lines if line.startswith("ERROR")]
    return (wrong or lines[-1:] or [f"exit code {answer.exit_code}"])[0].removeprefix("ERROR: ")


def report_dict(report: WheelReport) -> dict[str, Any]:
    """The wheel as plain JSON values."""
    return asdict(report) | {"path": str(report.path)}
