"""A wheel against this machine: what it says of itself, whether that fits here, and whether its operations run."""

from __future__ import annotations

import os
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dsrun.errors import ToolError
from dsrun.findings import Finding
from dsrun.system.hostlist import compressed
from dsrun.system.proc import Answer, ask
from dsrun.wheel.target.ops import all_ops
from dsrun.wheel.verify.archive import check_archive, open_wheel
from dsrun.wheel.verify.compatibility import compare, compare_with_gpus
from dsrun.wheel.verify.contents import Library, WheelReport, read_archive
from dsrun.wheel.verify.machine import Gpu, Machine, last_object, this_machine

Result = Literal["ran", "loaded", "failed"]

# A program of its own: only a child process loads torch, and its source is sent to nodes that have no dsrun.
RUN_OPS = Path(__file__).with_name("run_ops.py")

# With these findings installing or importing is bound to fail, and saying so once is enough.
_HOPELESS = frozenset(
    ["python_tag", "platform_tag", "platform_code", "torch_missing", "torch_version", "torch_cuda", "cxx11_abi"]
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


if TYPE_CHECKING:
    from dsrun.wheel.verify.check import Verification
    from dsrun.wheel.verify.machine import Machine
    from dsrun.wheel.verify.nodes import NodeReport

_NONE = "-"
_HEAD = ("operation", "SASS", "PTX", "processor", "glibc", "MiB")
_PLURAL = {"error": "errors", "warning": "warnings", "info": "remarks"}
_SINGULAR = {"error": "error", "warning": "warning", "info": "remark"}


def report_lines(done: Verification, reports: Sequence[NodeReport]) -> Iterator[str]:
    """The whole answer of verify-wheel."""
    yield from _heading(done.report)
    yield ""
    yield from table([_HEAD, *(_library_row(each) for each in done.report.libraries)])
    yield ""
    if done.machine:
        torch = f"torch {done.machine.torch}" if done.machine.torch else "no torch"
        yield f"here: Python {done.machine.python_version}, {torch}, {gpu_text(done.machine) or 'no GPU'}"
    for each in done.op_results:
        yield f"  {each.op}: {each.what if each.result != 'failed' else 'failed'} ({each.seconds:.1f} s)"
    if reports:
        yield from table(rows(reports))
    yield from finding_lines(done.findings, done.report.path.name)


def _heading(report: WheelReport) -> Iterator[str]:
    yield f"{report.name} {report.version} for {report.python} {report.platform}, {report.size / 2**20:.1f} MiB"
    cuda = f", CUDA {report.cuda}" if report.cuda else ""
    if report.accelerator:
        yield f"built with torch {report.torch}{cuda} for the accelerator {report.accelerator}"
    yield f"sha256 {report.sha256}"


def _library_row(library: Library) -> tuple[str, ...]:
    return (
        library.op or library.path,
        " ".join(library.sass) or _NONE,
        " ".join(library.ptx) or _NONE,
        library.cpu_level or "unknown",
        library.glibc or _NONE,
        f"{library.size / 2**20:.1f}",
    )


def table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Rows with their columns aligned, the last one free."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def finding_lines(findings: Iterable[Finding], name: str) -> Iterator[str]:
    """A line for each finding, what mends it below, and a sum."""
    every = list(findings)
    for each in every:
        place = f"{each.where}: " if each.where else ""
        yield f"{each.level} {place}{each.message} [{each.code}]"
        if each.fix:
            yield f"    {each.fix}"
    counts = Counter(each.level for each in every)
    words = [
        f"{count} {(_PLURAL if count > 1 else _SINGULAR)[level]}"
        for level in ("error", "warning", "info")
        if (count := counts[level])
    ]
    yield f"{name}: {', '.join(words) or 'no findings'}"


def gpu_text(machine: Machine) -> str:
    """The GPUs of a machine: "4x NVIDIA A100-SXM4-80GB"."""
    counts = Counter(gpu.name for gpu in machine.gpus)
    return ", ".join(f"{count}x {name}" for name, count in counts.items())


def rows(reports: Sequence[NodeReport]) -> list[tuple[str, ...]]:
    """The table of `dsrun wheel push`: one row a node, under a heading."""
    head = ("node", "Python", "torch", "driver", "GPU", "result")
    return [head, *(_row(each) for each in reports)]


def _row(done: NodeReport) -> tuple[str, ...]:
    machine = done.machine
    facts: tuple[str | None, ...] = (None,) * 4
    if machine:
        facts = (machine.python_version, machine.torch, machine.driver, gpu_text(machine))
    return done.node, *(fact or "-" for fact in facts), _result(done)


def _result(done: NodeReport) -> str:
    errors = [each for each in done.findings if each.level == "error"]
    if errors:
        return f"failed: {errors[0].message}" + (f" (and {len(errors) - 1} more)" if errors[1:] else "")
    ran = sum(op_result.result == "ran" for op_result in done.op_results)
    loaded = sum(op_result.result == "loaded" for op_result in done.op_results)
    counts = [f"{ran} ran" if ran else "", f"{loaded} loaded" if loaded else ""]
    return ", ".join(filter(None, [done.installed or "", *counts]))


def differences(reports: Sequence[NodeReport]) -> list[Finding]:
    """What the nodes that answered do not have in common: an error each, as one run will span them."""
    machines = [each.machine for each in reports if each.machine]
    found = []
    for what, of in _COMPARED.items():
        groups: dict[Any, list[str]] = defaultdict(list)
        for machine in machines:
            groups[of(machine)].append(machine.node)
        if len(groups) > 1:
            sides = "; ".join(f"{value or 'none'} on {compressed(names)}" for value, names in groups.items())
            fix = "make them alike, or leave the odd ones out"
            message = f"{what} differs: {sides}"
            found.append(Finding(level="error", code="nodes_differ", message=message, fix=fix))
    return found


_COMPARED: dict[str, Callable[[Machine], str | None]] = {
    "Python": lambda machine: machine.python_version,
    "torch": lambda machine: machine.torch,
    "driver": lambda machine: machine.driver,
    "GPU": gpu_text,
}
