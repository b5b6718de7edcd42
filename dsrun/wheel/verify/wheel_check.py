"""Verify a wheel: its contents, whether it fits this machine, and whether its operations run; and the report."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dsrun.errors import ToolError
from dsrun.findings.finding import Finding, errors_in, has_errors, text_of
from dsrun.findings.translation import translated
from dsrun.machine.node_comparison import compared
from dsrun.messages import Message
from dsrun.system.process.proc import capture
from dsrun.system.process.scratch import scratch_folder
from dsrun.system.terminal.display import aligned_rows
from dsrun.wheel.verify.archive import UNSAFE, check_archive, open_wheel
from dsrun.wheel.verify.compatibility import compare, compare_with_gpus
from dsrun.wheel.verify.contents import WheelLibrary, WheelReport, read_archive
from dsrun.wheel.verify.probed_machine import ProbedMachine, WheelGpu, last_object, this_machine

if TYPE_CHECKING:
    from dsrun.wheel.verify.nodes import NodeReport

OpOutcome = Literal["ran", "loaded", "failed"]

# Programs of their own: only a child process loads torch, and their source is sent to nodes that have no dsrun.
RUN_OPS = Path(__file__).with_name("run_ops.py")
LOAD_MODULES = Path(__file__).with_name("load_modules.py")

# With these findings installing or importing is bound to fail; they are reported once.
_FATAL = frozenset(
    {"python_tag", "platform_tag", "platform_code", "torch_missing", "torch_version", "torch_cuda", "cxx11_abi"}
    | {UNSAFE}
)


@dataclass(frozen=True, kw_only=True)
class OpResult:
    """The result of one operation: "ran" with a correct result, only "loaded", or "failed", with the details."""

    op: str
    result: OpOutcome
    what: str
    seconds: float


def can_smoke_test(report: WheelReport, findings: Iterable[Finding]) -> bool:
    """Whether the wheel has operations, and no finding that prevents loading them."""
    fatal = any(each.code in _FATAL for each in findings)
    return bool(report.accelerator and report.installed_ops and not fatal)


def program(report: WheelReport) -> Path:
    """What proves the wheel: it runs DeepSpeed's operations, or loads another package's extension modules."""
    return RUN_OPS if report.is_deepspeed else LOAD_MODULES


def arguments(report: WheelReport, site: str | None) -> list[str]:
    """The command line of `program`; `site` is the folder to import the package from, if any."""
    place = ["--site", site] if site else []
    if not report.is_deepspeed:
        return [*place, *report.installed_ops]
    return [*place, "--accelerator", str(report.accelerator), *report.installed_ops]


def parse_op_results(output: Mapping[str, Any], where: str) -> tuple[tuple[OpResult, ...], list[Finding]]:
    """The results in run_ops.py's JSON object, with an error for each failed operation and for a failed import."""
    results = tuple(OpResult(op=name, **each) for name, each in output["ops"].items())
    failures = [("op_fails", f"{each.op}: {each.what}") for each in results if each.result == "failed"]
    if output.get("error"):
        failures.append(("import_fails", output["error"]))
    return results, [Finding(level="error", code=code, message=text, where=where) for code, text in failures]


RUN_OPS_SECONDS = 900


@dataclass(frozen=True, kw_only=True)
class WheelVerification:
    """The results for a wheel on one machine. `machine` None: compared with GPUs alone."""

    report: WheelReport
    findings: tuple[Finding, ...]
    machine: ProbedMachine | None = None
    op_results: tuple[OpResult, ...] = ()

    @property
    def failed(self) -> bool:
        return has_errors(self.findings)


def examine(path: Path) -> tuple[WheelReport, list[Finding]]:
    """Read the wheel, and check its content against its own RECORD. Raises UsageError as `read_wheel` does."""
    with open_wheel(path) as archive:
        findings = check_archive(archive)
        is_safe = not any(each.code == UNSAFE for each in findings)
        return read_archive(archive, libraries=is_safe), findings


def needed_libraries(report: WheelReport) -> tuple[str, ...]:
    """Every shared library that the wheel's libraries need, except those it contains."""
    brought = {Path(library.path).name for library in report.libraries}
    return tuple(sorted({name for library in report.libraries for name in library.needed} - brought))


def verify_for(path: Path, gpus: Sequence[WheelGpu]) -> WheelVerification:
    """Compare the wheel with GPUs, regardless of this machine."""
    report, findings = examine(path)
    return WheelVerification(report=report, findings=(*findings, *compare_with_gpus(report, gpus)))


def verify_here(path: Path, *, python: str, prove: bool = True) -> WheelVerification:
    """Compare the wheel with this machine and the environment of the interpreter `python`.

    If torch is installed and no finding prevents it, the wheel is unpacked into a temporary folder and each operation
    runs once in a child process. The environment is not changed."""
    report, findings = examine(path)
    machine = this_machine(needed_libraries(report), python)
    findings += compare(report, machine)
    op_results: tuple[OpResult, ...] = ()
    if prove and can_smoke_test(report, findings):
        op_results, failures = _smoke_test(report, python, machine.node)
        findings += failures
    return WheelVerification(report=report, findings=tuple(findings), machine=machine, op_results=op_results)


def _smoke_test(report: WheelReport, python: str, where: str) -> tuple[tuple[OpResult, ...], list[Finding]]:
    with scratch_folder("dsrun-smoke-test-") as folder:
        with open_wheel(report.path) as archive:
            archive.unpack(folder)
        try:
            answer = capture([python, str(program(report)), *arguments(report, str(folder))], seconds=RUN_OPS_SECONDS)
            return parse_op_results(last_object(answer, "loading the operations"), where)
        except ToolError as error:
            return (), [Finding(level="error", code="import_fails", message=error.message, where=where)]


_NONE = "-"
_HEAD = ("operation", "SASS", "PTX", "processor", "glibc", "MiB")


def report_lines(done: WheelVerification, reports: "Sequence[NodeReport]") -> Iterator[str]:
    """The lines that verify-wheel prints."""
    yield from _heading(done.report)
    yield ""
    yield from aligned_rows([_HEAD, *(_library_row(each) for each in done.report.libraries)])
    yield ""
    if done.machine:
        torch = f"torch {done.machine.torch}" if done.machine.torch else "no torch"
        yield f"here: Python {done.machine.python_version}, {torch}, {gpu_text(done.machine) or 'no GPU'}"
    for each in done.op_results:
        yield f"  {each.op}: {each.what if each.result != 'failed' else 'failed'} ({each.seconds:.1f} s)"
    if reports:
        yield from aligned_rows(rows(reports))


def _heading(report: WheelReport) -> Iterator[str]:
    yield f"{report.name} {report.version} for {report.python} {report.platform}, {report.size / 2**20:.1f} MiB"
    cuda = f", CUDA {report.cuda}" if report.cuda else ""
    if report.accelerator:
        yield f"built with torch {report.torch}{cuda} for the accelerator {report.accelerator}"
    if report.built_from:
        made = report.built_from
        yield f"by dsrun: key {made['key']}, {made.get('compiler')}, {made.get('cpu')}"
    yield f"sha256 {report.sha256}"


def _library_row(library: WheelLibrary) -> tuple[str, ...]:
    return (
        library.op or library.path,
        " ".join(library.sass) or _NONE,
        " ".join(library.ptx) or _NONE,
        library.cpu_level or "unknown",
        library.glibc or _NONE,
        f"{library.size / 2**20:.1f}",
    )


def gpu_text(machine: ProbedMachine) -> str:
    """The GPUs of a machine: "4x NVIDIA A100-SXM4-80GB"."""
    counts = Counter(gpu.name for gpu in machine.gpus)
    return ", ".join(f"{count}x {name}" for name, count in counts.items())


def rows(reports: "Sequence[NodeReport]") -> list[tuple[str, ...]]:
    """The table of `dsrun wheel push`: a heading, and one row for each node."""
    facts = [_facts(each.machine).values() if each.machine else (None,) * 4 for each in reports]
    cells = ([fact or "-" for fact in row] for row in facts)
    own = ((each.node, *row, _result(each)) for each, row in zip(reports, cells, strict=True))
    return [("node", "Python", "torch", "driver", "GPU", "result"), *own]


def _facts(machine: ProbedMachine) -> dict[str, str | None]:
    """What is shown of a node, and compared."""
    versions = {"python": machine.python_version, "torch": machine.torch, "driver": machine.driver}
    return {**versions, "gpus": gpu_text(machine)}


def _result(done: "NodeReport") -> str:
    errors = errors_in(done.findings)
    if errors:
        return translated(
            Message(
                "failed: {message} (and {more} more)" if errors[1:] else "failed: {message}",
                message=errors[0].message,
                more=len(errors) - 1,
            )
        )
    ran = sum(op_result.result == "ran" for op_result in done.op_results)
    loaded = sum(op_result.result == "loaded" for op_result in done.op_results)
    counts = [f"{ran} ran" if ran else "", f"{loaded} loaded" if loaded else ""]
    ended = "stopped by Ctrl-C" if done.stopped else ""
    return ", ".join(filter(None, [done.installed or "", *counts, ended]))


def differences(reports: "Sequence[NodeReport]") -> list[Finding]:
    """An error for each property in which the nodes differ, since one run will span them."""
    none = text_of("nodes_differ.none")
    machines = [each.machine for each in reports if each.machine]
    nodes = {each.node: {name: fact or none for name, fact in _facts(each).items()} for each in machines}
    return [each.finding() for each in compared(nodes)]
