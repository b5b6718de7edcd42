"""The tables of docs/wheels.md: which torch and CUDA serve which GPU, from build/gpus.toml and cuda.toml."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dsrun.hardware.gpu_facts import gpu_table
from dsrun.wheel.platform.arch import ComputeCapability, nvcc_versions, tegra, torch_releases
from dsrun.wheel.platform.gpu_target import product_lines, serving
from tools.docs import table


def markdown() -> str:
    """The three tables: by GPU, by torch release, by nvcc version."""
    parts = [
        "### By GPU",
        table(("capability", "GPUs", "nvcc", "torch on PyPI (CUDA)"), _gpu_rows()),
        "### By torch release",
        "The packages on PyPI for Linux on x86_64. Code for one capability also runs on later ones of the same major "
        "number.",
        table(("torch", "CUDA", "holds code for"), _torch_rows()),
        "### By nvcc version",
        table(("nvcc", "compiles for"), _nvcc_rows()),
    ]
    return "\n\n".join(parts) + "\n"


def _gpu_rows() -> Iterable[Sequence[str]]:
    for wanted in sorted({row.capability for row in gpu_table()}):
        yield _dotted(wanted), ", ".join(product_lines(wanted)), _nvcc_span(wanted), _torch_span(wanted)


def _dotted(wanted: ComputeCapability) -> str:
    return f"{wanted[0]}.{wanted[1]}"


def _nvcc_span(wanted: ComputeCapability) -> str:
    """ "up to 12.9", "12.8 and later", "all" of the versions in the table."""
    versions = nvcc_versions()
    return _span([each for each in versions if wanted in versions[each]], list(versions))


def _torch_span(wanted: ComputeCapability) -> str:
    if wanted in tegra():
        return "NVIDIA's own for the board"
    rows = [f"{row.release} ({row.cuda})" for row in serving(wanted)]
    return _span(rows, [f"{row.release} ({row.cuda})" for row in torch_releases()])


def _span(found: Sequence[str], everything: Sequence[str]) -> str:
    if not found:
        return "none"
    if list(found) == list(everything):
        return "all"
    if found[-1] == everything[-1]:
        return f"{found[0]} and later"
    if found[0] == everything[0]:
        return f"up to {found[-1]}"
    return f"{found[0]} to {found[-1]}"


def _torch_rows() -> Iterable[Sequence[str]]:
    for row in torch_releases():
        yield row.release, row.cuda, ", ".join(map(_dotted, row.sass))


def _nvcc_rows() -> Iterable[Sequence[str]]:
    for version, compiled in nvcc_versions().items():
        yield version, ", ".join(map(_dotted, compiled))
