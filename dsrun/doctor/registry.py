"""All checks of `dsrun doctor`, in the order of how often they hurt."""

from dsrun.doctor.check import DoctorCheck
from dsrun.doctor.gpu import deep, gpu_settings, health, kernel_log, links, presence
from dsrun.doctor.host import clock, cpu, host_memory, infiniband, limits, quota, storage
from dsrun.doctor.job import hub, memory, precision, run_folder, settings, tokens
from dsrun.doctor.launch import interfaces, ports, ranks, variables
from dsrun.doctor.software import build_tools, compilers, cuda, jit, known_bad

CHECKS: tuple[DoctorCheck, ...] = (
    presence.GPU_DRIVER,
    presence.GPU_BUS,
    presence.FABRIC,
    cuda.DRIVER,
    cuda.GPU_CODE,
    compilers.TOOLKIT,
    compilers.HOST_COMPILER,
    jit.JIT_CACHE,
    settings.DEEPSPEED_JSON,
    settings.SETTINGS,
    settings.FILES,
    memory.GPU_MEMORY,
    limits.SHM,
    host_memory.HOST_MEMORY,
    ports.PORT,
    ports.NAMES,
    interfaces.INTERFACES,
    ranks.RANKS,
    variables.VARIABLES,
    hub.HUB,
    storage.DISK,
    storage.WRITE_SPEED,
    quota.QUOTA,
    storage.INODES,
    run_folder.RUN_FOLDER,
    known_bad.VERSIONS,
    kernel_log.XID,
    health.ECC,
    health.CLOCKS,
    health.PCIE,
    links.NVLINK,
    links.PEERS,
    infiniband.INFINIBAND,
    links.GPUDIRECT,
    limits.MEMLOCK,
    limits.NOFILE,
    limits.NPROC,
    precision.PRECISION,
    build_tools.TOOLS,
    build_tools.PROCESSOR,
    cpu.CORES,
    cpu.NUMA,
    tokens.TOKENIZER,
    clock.CLOCK,
    gpu_settings.SETTINGS,
)

DEEP_CHECKS: tuple[DoctorCheck, ...] = deep.DEEP_CHECKS
"""Those of --deep, which use the GPUs for minutes: they run last, one after the other, DEEP_LIMIT_S seconds each."""
DEEP_LIMIT_S = deep.DEEP_LIMIT_S
