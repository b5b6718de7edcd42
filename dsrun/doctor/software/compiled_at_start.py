"""Which of DeepSpeed's operations a job needs that the installed wheel lacks: they are compiled when it starts."""

from __future__ import annotations

from dsrun.doctor.job.zero_config import ops_of
from dsrun.doctor.machine import Machine, Target
from dsrun.wheel.target.ops import all_ops
from dsrun.wheel.verify.contents import assignments

_RECORD = "git_version_info_installed.py"


def installed_ops(machine: Machine) -> frozenset[str]:
    """The operations that the installed DeepSpeed was compiled with, by the record of its build."""
    folder = machine.packages.folder("deepspeed")
    try:
        record = assignments((folder / _RECORD).read_text(encoding="utf-8")) if folder else {}
    except (OSError, UnicodeDecodeError):
        return frozenset()
    return frozenset(str(name) for name, there in record.get("installed_ops", {}).items() if there)


def compiled_at_start(machine: Machine, target: Target, *, cuda: bool) -> list[str]:
    """The operations that the job compiles at its start; with `cuda` those that nvcc or CUDA's headers are needed for.

    Without a job, none: nothing is known to be needed.
    """
    missing = [name for name in ops_of(target) if name not in installed_ops(machine)]
    if not cuda:
        return missing
    with_cuda = {op.name for op in all_ops() if op.code != "host" and op.until is None and "cuda" in op.accelerators}
    return [name for name in missing if name in with_cuda]
