"""The reader of GPU code: byte fixtures in nvcc's layout, and nvcc's own output where there is an nvcc."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from dsrun.wheel.verify.fatbin import ElfSection, FatbinError, arch_order, architectures, read_fatbin
from tests.tiny_wheels import EXACT, FAMILY, LTO, LZ4, PTX, SASS, ZSTD, container, entry


def kinds(section):
    found = read_fatbin(section)
    return {kind: architectures(found, kind) for kind in ("sass", "ptx", "lto") if architectures(found, kind)}


def test_sass_and_ptx_of_several_archs():
    section = container(entry(SASS, 75), entry(SASS, 80), entry(SASS, 100), entry(PTX, 100))
    assert kinds(section) == {"sass": ("7.5", "8.0", "10.0"), "ptx": ("10.0",)}


def test_sass_arch_in_several_containers_counts_once():
    section = container(entry(SASS, 80)) + container(entry(SASS, 80), entry(SASS, 75))
    assert len(read_fatbin(section)) == 3
    assert kinds(section) == {"sass": ("7.5", "8.0")}


def test_ptx_isa_version():
    (only,) = read_fatbin(container(entry(PTX, 80, version=(8, 7))))
    assert (only.kind, only.arch, only.version) == ("ptx", "8.0", "8.7")


@pytest.mark.parametrize("flag", [LZ4, ZSTD])
def test_compressed_fatbin_entries(flag):
    section = container(entry(SASS, 90, flag, payload=b"\x28\xb5\x2f\xfd" * 9), entry(PTX, 90, flag))
    assert kinds(section) == {"sass": ("9.0",), "ptx": ("9.0",)}


def test_arch_and_family_specific_code_keeps_suffix():
    """9.0a and 10.0f are not 9.0 and 10.0."""
    section = container(entry(SASS, 90, EXACT), entry(SASS, 90), entry(SASS, 100, FAMILY), entry(PTX, 120, EXACT))
    assert kinds(section) == {"sass": ("9.0", "9.0a", "10.0f"), "ptx": ("12.0a",)}


def test_lto_is_neither_sass_nor_ptx():
    assert kinds(container(entry(LTO, 80))) == {"lto": ("8.0",)}


def test_unknown_fatbin_entry_kind_is_skipped():
    assert [each.kind for each in read_fatbin(container(entry(64, 80), entry(SASS, 80)))] == ["other", "sass"]


def test_padding_between_and_after_containers():
    one, other = container(entry(SASS, 75)), container(entry(SASS, 80))
    assert kinds(one + b"\0" * 9000 + other + b"\0" * 5) == {"sass": ("7.5", "8.0")}


def test_longer_entry_header_is_skipped():
    header = bytearray(entry(SASS, 86))
    struct.pack_into("<I", header, 4, 112)
    stretched = bytes(header[:64]) + b"\0" * 48 + bytes(header[64:])
    assert kinds(container(stretched, entry(SASS, 89))) == {"sass": ("8.6", "8.9")}


def test_empty_section_has_no_code():
    assert read_fatbin(b"") == ()
    assert read_fatbin(b"\0" * 64) == ()


GOOD = container(entry(SASS, 80, payload=b"x" * 32), entry(SASS, 90, payload=b"y" * 32))


@pytest.mark.parametrize(
    ("section", "said"),
    [
        (GOOD[:-1], "reaches past the end of the section"),
        (GOOD[:10], "ends inside a container's header"),
        (GOOD + b"garbage!" * 4, "neither a container nor padding"),
        (b"\x7fELF" + bytes(60), "neither a container nor padding"),
        (container(entry(SASS, 80)[:-4]), "reaches past its container"),
        (container(entry(SASS, 80), entry(SASS, 90)[:40]), "ends inside an entry's header"),
        (struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 1 << 62), "reaches past the end"),
        (struct.pack("<IHHQ", 0xBA55ED50, 1, 0, 0), "reaches past the end"),
        (container(struct.pack("<HHIQ", SASS, 257, 8, 0) + bytes(56)), "reaches past its container"),
    ],
)
def test_damaged_section_is_an_error(section, said):
    """A damaged section is an error, never a shorter list."""
    with pytest.raises(FatbinError, match=said):
        read_fatbin(section)


def test_truncated_section_is_an_error_at_any_length():
    for length in range(1, len(GOOD)):
        with pytest.raises(FatbinError):
            read_fatbin(GOOD[:length])


def test_arch_order_is_numeric():
    assert sorted(["10.0", "9.0a", "9.0", "7.5", "10.0f"], key=arch_order) == [
        "7.5",
        "9.0",
        "9.0a",
        "10.0",
        "10.0f",
    ]


# --- nvcc's own output. The byte fixtures above hold the same behaviour where there is none. ---

KERNEL = "__global__ void twice(float *x) { x[threadIdx.x] *= 2; }\nvoid go(float *x) { twice<<<1, 32>>>(x); }\n"
NVCC = shutil.which("nvcc") or (shutil.which("nvcc", path="/usr/local/cuda/bin"))
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="no nvcc on PATH or in /usr/local/cuda")

BUILDS = {
    "several": (
        ["arch=compute_75,code=sm_75", "arch=compute_80,code=sm_80", "arch=compute_90a,code=sm_90a"],
        [],
    ),
    "ptx_only": (["arch=compute_80,code=compute_80"], []),
    "plain": (["arch=compute_80,code=[sm_80,compute_80]"], ["-no-compress"]),
    "compressed": (
        ["arch=compute_80,code=sm_80", "arch=compute_90,code=compute_90"],
        ["-Xfatbin", "-compress-all"],
    ),
    "lto": (["arch=compute_80,code=[sm_80,lto_80]"], []),
    "relocatable": (["arch=compute_80,code=sm_80"], ["-rdc=true"]),
}
EXPECTED = {
    "several": (("7.5", "8.0", "9.0a"), (), ()),
    "ptx_only": ((), ("8.0",), ()),
    "plain": (("8.0",), ("8.0",), ()),
    "compressed": (("8.0",), ("9.0",), ()),
    "lto": (("8.0",), (), ("8.0",)),
    "relocatable": (("8.0",), (), ()),
}


@pytest.fixture(scope="module")
def nvcc_built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nvcc")
    (folder / "k.cu").write_text(KERNEL)

    def build(name: str) -> Path:
        targets, flags = BUILDS[name]
        codes = [word for target in targets for word in ("-gencode", target)]
        # The shared CUDA runtime keeps the file small; no library of the driver is needed to link.
        argv = [NVCC, "-shared", "-Xcompiler", "-fPIC", "-cudart", "shared", *codes, *flags]
        subprocess.run([*argv, "-o", f"{name}.so", "k.cu"], cwd=folder, check=True, capture_output=True)
        return folder / f"{name}.so"

    return build


@needs_nvcc
@pytest.mark.parametrize("name", BUILDS)
def test_archs_of_nvcc_built_library(nvcc_built, name):
    """What nvcc was asked for is found again, as cuobjdump finds it."""
    library = nvcc_built(name)
    with library.open("rb") as file:
        code = read_fatbin(ElfSection.of(ELFFile(file), ".nv_fatbin", file))
    assert tuple(architectures(code, kind) for kind in ("sass", "ptx", "lto")) == EXPECTED[name]
    counts = cuobjdump_counts(library)
    if counts is not None:
        ours = [("sm_" if each.kind == "sass" else "ptx_") + number(each.arch) for each in code if each.kind != "lto"]
        assert sorted(ours) == counts


def number(arch: str) -> str:
    return arch.replace(".", "")


def cuobjdump_counts(library: Path) -> list[str] | None:
    """One word for each piece of code that NVIDIA's own tool lists; None without it. triton's wheel has one."""
    tool = shutil.which("cuobjdump")
    triton = find_spec("triton")
    if tool is None and triton and triton.submodule_search_locations:
        bundled = Path(triton.submodule_search_locations[0], "backends/nvidia/bin/cuobjdump")
        tool = str(bundled) if bundled.exists() else None
    if tool is None:
        return None
    said = subprocess.run(
        [tool, "--list-elf", "--list-ptx", str(library)], capture_output=True, text=True, check=False
    ).stdout
    binaries = re.findall(r"ELF file.*\.sm_(\d+[af]?)\.cubin", said)
    texts = re.findall(r"PTX file.*\.sm_(\d+[af]?)\.ptx", said)
    return sorted([f"sm_{each}" for each in binaries] + [f"ptx_{each}" for each in texts])
