"""A machine for the checks of `dsrun doctor`: files below a folder, output of programs, GPUs as plain values."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from dsrun.doctor.check import Check
from dsrun.doctor.gpu.nvml import GpuState, NvmlAnswer
from dsrun.doctor.machine import Machine, Target
from dsrun.errors import MissingError
from dsrun.findings import Finding


def recorded(
    root: Path,
    files: Mapping[str, str | bytes] = {},
    *,
    gpus: Iterable[GpuState] = (),
    programs: Mapping[str, str | tuple[int, str]] = {},
    environ: Mapping[str, str] = {},
    **more: Any,
) -> Machine:
    """`programs` are their output, or exit code and output, by command line; all others are not installed."""
    for name, content in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    def run(argv):
        said = programs.get(" ".join(argv))
        if said is None:
            raise MissingError(f"there is no program {argv[0]}")
        code, output = said if isinstance(said, tuple) else (0, said)
        return CompletedProcess(argv, code, output, "")

    answer = NvmlAnswer(gpus=tuple(gpus))
    return Machine(root=root, environ=environ, **{"run": run, "run_long": run, "nvml": lambda: answer, **more})


def found(check: Check, machine: Machine, target: Target | None = None) -> list[Finding]:
    """What a check finds."""
    findings = list(check.look(machine, target or Target()))
    assert all(each.code.startswith(check.code) for each in findings), findings
    assert all(each.fix for each in findings if each.level != "info"), findings
    return findings


def codes(check: Check, machine: Machine, target: Target | None = None) -> dict[str, str]:
    """The level of each finding by its code."""
    return {each.code: each.level for each in found(check, machine, target)}
