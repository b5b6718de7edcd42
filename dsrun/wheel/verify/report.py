"""What verify-wheel and wheel push say, as lines of text."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dsrun.findings import Finding
from dsrun.wheel.inspect.contents import Library, WheelReport

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
        yield f"here: Python {done.machine.python_version}, {torch}, {_gpus(done)}"
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


def _gpus(done: Verification) -> str:
    return (done.machine and gpu_text(done.machine)) or "no GPU"


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
            sides = "; ".join(f"{value or 'none'} on {_few(names)}" for value, names in groups.items())
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


def _few(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"
