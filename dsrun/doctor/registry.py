"""All checks of `dsrun doctor`, in the order of how often they hurt."""

from __future__ import annotations

from dsrun.doctor.check import Check
from dsrun.doctor.job import run_folder
from dsrun.doctor.software import build_tools, compilers, cuda, jit, known_bad

CHECKS: tuple[Check, ...] = (
    cuda.DRIVER,
    cuda.GPU_CODE,
    compilers.TOOLKIT,
    compilers.HOST_COMPILER,
    jit.JIT_CACHE,
    run_folder.RUN_FOLDER,
    known_bad.VERSIONS,
    build_tools.TOOLS,
    build_tools.PROCESSOR,
)
