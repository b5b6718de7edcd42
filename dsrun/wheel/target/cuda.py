"""What build/cuda.toml knows: what each nvcc compiles, and which GPUs each torch on PyPI holds code for."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from dsrun.datafiles import data_folder

Capability = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class TorchRelease:
    """One minor release of torch as PyPI has it for Linux x86_64: its CUDA, and the SASS in libtorch_cuda.so."""

    release: str
    cuda: str
    sass: tuple[Capability, ...]


@cache
def _facts() -> dict[str, Any]:
    return tomllib.loads((data_folder("build") / "cuda.toml").read_text(encoding="utf-8"))


def capability(text: str) -> Capability:
    """ "9.0" as numbers."""
    major, minor = text.split(".")
    return int(major), int(minor)


def _capabilities(texts: list[str]) -> tuple[Capability, ...]:
    return tuple(capability(text) for text in texts)


def minor_release(version: str) -> str:
    """Major and minor of a version: "13.0.88" and "13.0" are "13.0", "2.13.0+cu130" is "2.13"."""
    return ".".join(version.partition("+")[0].split(".")[:2])


@cache
def nvcc_versions() -> Mapping[str, tuple[Capability, ...]]:
    """nvcc version -> what it compiles for, oldest version first."""
    return {entry["version"]: _capabilities(entry["capabilities"]) for entry in _facts()["nvcc"]}


def nvcc_compiles(version: str) -> tuple[tuple[Capability, ...], bool]:
    """What nvcc `version` compiles for, and whether that is the whole truth.

    A version that is not in the table compiles at least what the next older one of its major version does:
    NVIDIA drops architectures in major releases only. Nothing is known of other major versions: ((), False).
    """
    wanted = capability(minor_release(version))
    known = {capability(name): archs for name, archs in nvcc_versions().items()}
    if wanted in known:
        return known[wanted], True
    older = [each for each in known if each[0] == wanted[0] and each < wanted]
    return (known[max(older)], False) if older else ((), False)


@cache
def torch_releases() -> tuple[TorchRelease, ...]:
    """The releases of torch in the table, oldest first."""
    return tuple(
        TorchRelease(release=row["release"], cuda=row["cuda"], sass=_capabilities(row["sass"]))
        for row in _facts()["torch"]
    )


@cache
def host_limits(nvcc: str) -> Mapping[str, int] | None:
    """Newest major version of "gcc" and "clang" that this nvcc takes; None for a version not in the table."""
    limits: Mapping[str, int] | None = _facts()["host_compilers"].get(minor_release(nvcc))
    return limits


@cache
def generations() -> Mapping[str, tuple[Capability, ...]]:
    """The words for a generation of GPUs, and what each stands for."""
    return {word: _capabilities(texts) for word, texts in _facts()["generations"].items()}


@cache
def tegra() -> frozenset[Capability]:
    """Capabilities of Tegra boards, which run only code that was compiled for exactly them."""
    return frozenset(_capabilities(_facts()["tegra"]["capabilities"]))
