"""All checks of `dsrun doctor`, in the order of how often they hurt."""

from __future__ import annotations

from dsrun.doctor.check import Check
from dsrun.doctor.job import hub, memory, precision, run_folder, settings, tokens
from dsrun.doctor.launch import interfaces, ports, ranks, variables
from dsrun.doctor.software import build_tools, compilers, cuda, jit, known_bad

CHECKS: tuple[Check, ...] = (
    cuda.DRIVER,
    cuda.GPU_CODE,
    compilers.TOOLKIT,
    compilers.HOST_COMPILER,
    jit.JIT_CACHE,
    settings.DEEPSPEED_JSON,
    settings.SETTINGS,
    settings.FILES,
    memory.GPU_MEMORY,
    ports.PORT,
    ports.NAMES,
    interfaces.INTERFACES,
    ranks.RANKS,
    variables.VARIABLES,
    hub.HUB,
    run_folder.RUN_FOLDER,
    known_bad.VERSIONS,
    precision.PRECISION,
    build_tools.TOOLS,
    build_tools.PROCESSOR,
    tokens.TOKENIZER,
)
