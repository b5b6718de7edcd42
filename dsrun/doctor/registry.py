"""All checks of `dsrun doctor`, in the order of how often they hurt: that of checks.toml."""

from dsrun.doctor.check import TEXTS
from dsrun.doctor.gpu import deep, gpu_settings, health, kernel_log, links, presence
from dsrun.doctor.host import clock, cpu, host_memory, infiniband, limits, quota, storage
from dsrun.doctor.job import hub, memory, precision, run_folder, settings, tokens
from dsrun.doctor.launch import interfaces, ports, ranks, variables
from dsrun.doctor.software import build_tools, compilers, cuda, jit, known_bad
from dsrun.findings.checks import Check

_MODULES = (
    gpu_settings, health, kernel_log, links, presence,
    clock, cpu, host_memory, infiniband, limits, quota, storage,
    hub, memory, precision, run_folder, settings, tokens,
    interfaces, ports, ranks, variables,
    build_tools, compilers, cuda, jit, known_bad,
)  # fmt: skip
_BY_CODE = {each.code: each for module in _MODULES for each in vars(module).values() if isinstance(each, Check)}
CHECKS = tuple(_BY_CODE[code] for code in TEXTS if code in _BY_CODE)

DEEP_CHECKS: tuple[Check, ...] = deep.DEEP_CHECKS
"""Those of --deep, which use the GPUs for minutes: they run last, one after the other, DEEP_LIMIT_S seconds each."""
DEEP_LIMIT_S = deep.DEEP_LIMIT_S
