"""Architectures: from the names people type to what DeepSpeed's parser takes, checked against nvcc and torch."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from dsrun.datafiles import data_folder, read_toml
from dsrun.errors import UsageError, nearest_names
from dsrun.hardware.gpu_facts import gpu_table, lookup, meanings, near_names, unknown_gpu

ComputeCapability = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class TorchRelease:
    """One minor release of torch as PyPI has it for Linux x86_64: its CUDA, and the SASS in libtorch_cuda.so."""

    release: str
    cuda: str
    sass: tuple[ComputeCapability, ...]


@cache
def _facts() -> dict[str, Any]:
    return read_toml(data_folder("build") / "cuda.toml")


def capability(text: str) -> ComputeCapability:
    """ "9.0" as numbers."""
    major, minor = text.split(".")
    return int(major), int(minor)


def _capabilities(texts: list[str]) -> tuple[ComputeCapability, ...]:
    return tuple(capability(text) for text in texts)


def minor_release(version: str) -> str:
    """Major and minor of a version: "13.0.88" and "13.0" are "13.0", "2.13.0+cu130" is "2.13"."""
    return ".".join(version.partition("+")[0].split(".")[:2])


@cache
def nvcc_versions() -> Mapping[str, tuple[ComputeCapability, ...]]:
    """nvcc version -> what it compiles for, oldest version first."""
    return {entry["version"]: _capabilities(entry["capabilities"]) for entry in _facts()["nvcc"]}


@cache
def torch_releases() -> tuple[TorchRelease, ...]:
    """The releases of torch in the table, oldest first."""
    return tuple(
        TorchRelease(release=row["release"], cuda=row["cuda"], sass=_capabilities(row["sass"]))
        for row in _facts()["torch"]
    )


@cache
def generations() -> Mapping[str, tuple[ComputeCapability, ...]]:
    """The words for a generation of GPUs, and what each stands for."""
    return {word: _capabilities(texts) for word, texts in _facts()["generations"].items()}


@cache
def tegra() -> frozenset[ComputeCapability]:
    """Capabilities of Tegra boards, which run only code that was compiled for exactly them."""
    return frozenset(_capabilities(_facts()["tegra"]["capabilities"]))


EXAMPLE = 'such as a100,h100 or "8.0;9.0+PTX"'
_CAPABILITY = re.compile(r"(\d{1,4})\.(\d{1,4})")
_COMPILER_WORD = re.compile(r"(?:sm|compute)_?(\d{1,4})(\d)")
_VARIANT = re.compile(r"(?:(\d+)\.(\d+)|(?:sm|compute)_?(\d+)(\d))[af]")
_DIGITS = re.compile(r"(\d{1,4})(\d)")
_PTX = re.compile(r"\+ptx$")
_ALONE = ("auto", "cpu", "slurm")


@dataclass(frozen=True, order=True)
class CudaArch:
    """One architecture to compile for; `ptx`: with PTX beside it, which later GPUs compile when they load it."""

    major: int
    minor: int
    ptx: bool = False

    def __str__(self) -> str:
        return f"{self.name}+PTX" if self.ptx else self.name

    @property
    def name(self) -> str:
        """The compute capability: "9.0"."""
        return f"{self.major}.{self.minor}"

    @property
    def capability(self) -> ComputeCapability:
        return self.major, self.minor


CudaArchs = tuple[CudaArch, ...]


def union(archs: Iterable[CudaArch]) -> CudaArchs:
    """Sorted, each once; PTX where one of them asks for it."""
    merged: dict[ComputeCapability, bool] = {}
    for arch in archs:
        merged[arch.capability] = merged.get(arch.capability, False) or arch.ptx
    return tuple(CudaArch(*each, ptx) for each, ptx in sorted(merged.items()))


def env_value(archs: Iterable[CudaArch]) -> str:
    """TORCH_CUDA_ARCH_LIST as DeepSpeed's parser takes it: `X.Y` or `X.Y+PTX`, ";" between, nothing else.

    Names, "9.0a", commas, a blank beside ";" and a ";" at the end make it fail with a bare ValueError
    (deepspeed/ops/op_builder/builder.py, compute_capability_args)."""
    return ";".join(str(arch) for arch in union(archs))


def runs_on(built: CudaArch, wanted: ComputeCapability) -> bool:
    """Whether a GPU of capability `wanted` runs code compiled for `built`.

    Complete code (SASS) runs on GPUs of the same major and an equal or later minor version, on Tegra only on
    its own; PTX is compiled for any later GPU when it is loaded (CUDA C++ Programming Guide, "Compatibility")."""
    if built.ptx and wanted >= built.capability:
        return True
    if built.capability in tegra() or wanted in tegra():
        return built.capability == wanted
    return built.major == wanted[0] and built.minor <= wanted[1]


def known_capabilities() -> tuple[ComputeCapability, ...]:
    """Every compute capability that a GPU of the table has or an nvcc of the table compiles for."""
    compiled = {each for archs in nvcc_versions().values() for each in archs}
    return tuple(sorted(compiled | {row.capability for row in gpu_table()}))


def parse_archs(text: str, flag: str = "--arch") -> CudaArchs:
    """The architectures that `text` lists: GPU names, generations and capabilities in any mix.

    "," or ";" stands between them, between capabilities also a blank; "+PTX" may follow each. Raises UsageError
    for an empty list and for what is not known for certain, with what may have been meant; `flag` is where it stood."""
    try:
        return _listed(text)
    except UsageError as error:
        raise UsageError(f"{flag}: {error.message}", fix=error.fix) from None


def _listed(text: str) -> CudaArchs:
    entries = [entry.strip() for part in re.split(r"[,;\n]", text) for entry in _blanks(part)]
    archs = union(arch for entry in entries if entry for arch in _entry(entry))
    if not archs:
        raise UsageError("names no architecture", fix=f"name GPUs or capabilities, {EXAMPLE}")
    return archs


def _blanks(part: str) -> list[str]:
    """Blanks divide capabilities ("8.0 9.0+PTX") but not names ("RTX 4090")."""
    words = part.split()
    bare = [_PTX.sub("", word.lower()) for word in words]
    return words if all(_CAPABILITY.fullmatch(word) or _COMPILER_WORD.fullmatch(word) for word in bare) else [part]


def _entry(entry: str) -> list[CudaArch]:
    word, ptx = _PTX.subn("", entry.lower())
    word = word.strip()
    found = _capability(entry, word)
    if found is None:
        found = generations().get(word)
    if found is None:
        found = _gpu(entry, entry[: len(entry) - len("+PTX")].strip() if ptx else entry)
    return [CudaArch(*each, ptx=bool(ptx)) for each in found]


def _capability(entry: str, word: str) -> tuple[ComputeCapability, ...] | None:
    """What a capability or a compiler's word for one means; None when `word` is neither."""
    match = _CAPABILITY.fullmatch(word) or _COMPILER_WORD.fullmatch(word)
    if match:
        wanted = int(match[1]), int(match[2])
        if wanted not in known_capabilities():
            known = known_capabilities()
            alike = [each for each in known if each[0] == wanted[0]] or known
            names = ", ".join(f"{each[0]}.{each[1]}" for each in alike)
            raise UsageError(f"no GPU has the compute capability {entry}", fix=f"known: {names}")
        return (wanted,)
    variant = _VARIANT.fullmatch(word)
    if variant:
        plain = ".".join(group for group in variant.groups() if group)
        what = f"{entry!r} is a variant for one GPU only, which DeepSpeed's build cannot take"
        raise UsageError(what, fix=f"write {plain}")
    return None


def _gpu(entry: str, name: str) -> tuple[ComputeCapability, ...]:
    found = lookup(name)
    if found:
        return (found.capability,)
    if name.lower() in _ALONE:
        raise UsageError(f"{name} stands alone, not in a list", fix=f"write --arch {name.lower()}")
    if name.lower() == "native":
        raise UsageError("'native' is not a list", fix="write --arch auto for the GPUs of this machine")
    several = {row.capability: row.name for row in reversed(meanings(name))}
    if several:
        meant = " or ".join(f"{product} ({major}.{minor})" for (major, minor), product in sorted(several.items()))
        raise UsageError(f"{entry!r} may be {meant}", fix="write the whole name or the capability")
    raise UsageError(unknown_gpu(entry), fix=_meant(name))


def _meant(name: str) -> str:
    digits = _DIGITS.fullmatch(name)
    if digits and (int(digits[1]), int(digits[2])) in known_capabilities():
        return f"did you mean {digits[1]}.{digits[2]}?"
    near = nearest_names(name, generations(), 1) or near_names(name)
    return f"did you mean {' or '.join(near)}?" if near else f"give GPU names or capabilities, {EXAMPLE}"
