"""How many compilers may run at once."""

from __future__ import annotations

# cicc on DeepSpeed's larger kernels peaks between 2 and 4 GiB a process; g++ -O3 on torch's headers near 1.5 GiB.
_CUDA_JOB_BYTES = 4 << 30
_HOST_JOB_BYTES = 3 << 29


def jobs(cores: int, memory_bytes: int, cuda: bool) -> int:
    """Compilers to run at once on `cores` cores with `memory_bytes` of free memory: at least 1.

    `cuda`: with kernels, of which one needs up to 4 GiB; plain C++ needs 1.5 GiB. DS_NVCC_THREADS, by which one
    nvcc compiles several architectures at once, must be 1 for this to hold.
    """
    each = _CUDA_JOB_BYTES if cuda else _HOST_JOB_BYTES
    return max(1, min(cores, memory_bytes // each))
