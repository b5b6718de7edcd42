"""What is read out of a wheel: real libraries that gcc makes, in real archives."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from contextlib import suppress

import pytest

from dsrun.errors import DsrunError, UsageError
from dsrun.wheel.verify.contents import op_of, read_library, read_wheel
from dsrun.wheel.verify.isa_level import (
    highest,
    lacking,
    level_of_code,
    level_of_flags,
    split_level,
)
from tests.tiny_wheels import (
    PTX,
    PYTHON,
    SASS,
    VERSION,
    built_note,
    compiled,
    container,
    entry,
    make_wheel,
    needs_gcc,
)

PLAIN = "int twice(int x) { return 2 * x; }"
# Sums of arrays: each level's compiler takes its widest vectors for them.
SUMS = "void add(float *a, const float *b, int n) { for (int i = 0; i < n; i++) a[i] = a[i] * b[i] + 1.0f; }"
# A condition in the loop: with AVX-512 it becomes a mask, whatever the width of the vectors.
CHOICE = "void add(float *a, float *b, int n) { for (int i = 0; i < n; i++) if (b[i] > 0) a[i] = b[i] * a[i]; }"
NOTE = "deepspeed/git_version_info_installed.py"
ADAM = f"deepspeed/ops/adam/cpu_adam_op.{PYTHON}-x86_64-linux-gnu.so"
needs_objdump = pytest.mark.skipif(shutil.which("objdump") is None, reason="no objdump to disassemble with")


@needs_gcc
def test_wheel_report_fields(tmp_path):
    library = compiled(tmp_path / "c", PLAIN)
    path = make_wheel(tmp_path, {ADAM: library, NOTE: built_note(["cpu_adam"], "cuda", "2.13", "13.0")})
    report = read_wheel(path)
    assert (report.name, report.version, report.local) == ("deepspeed", VERSION, "cputorch2.13")
    assert (report.python, report.abi, report.platform) == (PYTHON, PYTHON, "linux_x86_64")
    assert (report.torch, report.cuda, report.accelerator) == ("2.13", "13.0", "cuda")
    assert report.installed_ops == ("cpu_adam",)
    assert report.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert report.size == path.stat().st_size
    (only,) = report.libraries
    assert (only.path, only.op, only.size) == (ADAM, "cpu_adam", library.stat().st_size)


@needs_gcc
def test_sass_and_ptx_in_wheel_library(tmp_path):
    section = container(entry(SASS, 80), entry(SASS, 90)) + container(entry(PTX, 90, version=(8, 7)))
    library = compiled(tmp_path / "c", PLAIN, section=section)
    (only,) = read_wheel(make_wheel(tmp_path, {"deepspeed/ops/utils_op.so": library})).libraries
    assert (only.op, only.sass, only.ptx, only.ptx_isa) == ("utils", ("8.0", "9.0"), ("9.0",), "8.7")


def test_wheel_without_ops(tmp_path):
    report = read_wheel(make_wheel(tmp_path, {"deepspeed/__init__.py": ""}, tag="py3-none-any"))
    assert (report.torch, report.cuda, report.accelerator) == (None, None, None)
    assert (report.installed_ops, report.libraries, report.platform) == ((), (), "any")


def test_build_note_is_parsed_and_never_executed(tmp_path):
    note = built_note(["cpu_adam"]) + f"open({str(tmp_path / 'ran')!r}, 'w')\nlater = open\n"
    report = read_wheel(make_wheel(tmp_path, {NOTE: note}))
    assert not (tmp_path / "ran").exists()
    assert report.installed_ops == ()  # a note that is not plain values is no note


@pytest.mark.parametrize("note", ["torch_info = 7\ninstalled_ops = [1]\n", "(" * 400, "version = \n", ""])
def test_malformed_build_note(tmp_path, note):
    report = read_wheel(make_wheel(tmp_path, {NOTE: note}))
    assert (report.torch, report.accelerator, report.installed_ops) == (None, None, ())


@pytest.mark.parametrize(
    ("path", "op"),
    [
        ("deepspeed/ops/adam/cpu_adam_op.cpython-311-x86_64-linux-gnu.so", "cpu_adam"),
        ("deepspeed/ops/comm/deepspeed_shm_comm_op.cpython-311-x86_64-linux-gnu.so", "deepspeed_shm_comm"),
        ("deepspeed/inference/v2/kernelsinference_core_ops.abi3.so", "inference_core_ops"),
        ("deepspeed/inference/v2/ragged_ops.so", "ragged_ops"),
        ("deepspeed.libs/libaio-1.so.1", None),
    ],
)
def test_op_name_from_library_path(path, op):
    assert op_of(path) == op


# --- one library ---


@needs_gcc
def test_library_needed_and_glibc_version(tmp_path):
    source = '#include <math.h>\n#include <stdio.h>\ndouble f(double x) { printf("x"); return exp(x); }'
    binary = read_library(compiled(tmp_path, source, "-lm"), "tiny.so")
    assert binary.needed == ("libm.so.6", "libc.so.6")
    assert binary.machine == "x64"
    # exp got a new version in glibc 2.29; printf is as old as the port.
    assert binary.glibc == "2.29"
    assert (binary.glibcxx, binary.cxx11_abi, binary.sass, binary.ptx) == (None, None, (), ())


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
@pytest.mark.parametrize(("flag", "new"), [("1", True), ("0", False)])
def test_cxx11_abi_from_symbols(tmp_path, flag, new):
    source = tmp_path / "s.cpp"
    source.write_text('#include <string>\nvoid take(const std::string &);\nvoid give() { take(std::string("x")); }')
    library = tmp_path / "s.so"
    define = f"-D_GLIBCXX_USE_CXX11_ABI={flag}"
    subprocess.run(["g++", "-shared", "-fPIC", define, "-o", library, source], check=True)
    binary = read_library(library, "s.so")
    assert binary.cxx11_abi is new
    assert binary.glibcxx is not None


@needs_gcc
@needs_objdump
@pytest.mark.parametrize(
    ("source", "flags", "level"),
    [
        (SUMS, ["-march=x86-64"], "x86-64"),
        (SUMS, ["-march=haswell"], "x86-64-v3"),
        # GCC keeps to 256 bits for this processor, and what it writes here runs on a Haswell.
        (SUMS, ["-march=skylake-avx512"], "x86-64-v3"),
        (SUMS, ["-march=skylake-avx512", "-mprefer-vector-width=512"], "x86-64-v4"),
        (CHOICE, ["-march=haswell"], "x86-64-v3"),
        (CHOICE, ["-march=icelake-server"], "x86-64-v4"),
    ],
)
def test_cpu_level_from_instructions(tmp_path, source, flags, level):
    library = compiled(tmp_path, source, "-O3", *flags)
    subprocess.run(["strip", "--strip-unneeded", str(library)], check=True)
    assert read_library(library, "deepspeed/ops/tiny_op.so").cpu_level == level


@needs_gcc
@needs_objdump
def test_avx512_in_single_function_is_found(tmp_path):
    """AVX-512 in a single function is found whatever -march says."""
    source = f'__attribute__((target("avx512bw"))) {SUMS}'
    library = compiled(tmp_path, source, "-O3", "-g", "-march=x86-64", "-mprefer-vector-width=512")
    assert read_library(library, "deepspeed/ops/tiny_op.so").cpu_level == "x86-64-v4"


@needs_gcc
@pytest.mark.parametrize(
    ("flags", "level"),
    [
        (["-g", "-march=haswell"], "x86-64-v3"),
        (["-g", "-march=znver3", "-mavx512f"], "x86-64-v4"),  # what "native" becomes on a newer processor
        (["-march=haswell"], None),
    ],
)
def test_cpu_level_from_debug_info_without_objdump(tmp_path, monkeypatch, flags, level):
    """Without objdump the debug information gives the level, or nothing does."""
    library = compiled(tmp_path, SUMS, "-O3", *flags)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_library(library, "deepspeed/ops/tiny_op.so").cpu_level == level


@needs_gcc
@pytest.mark.parametrize("content", [b"not elf at all", b"\x7fELF", b"\x7fELF" + b"\x02\x01" + b"\xff" * 90])
def test_library_that_is_not_elf(tmp_path, content):
    path = make_wheel(tmp_path, {"deepspeed/ops/utils_op.so": content})
    with pytest.raises(UsageError, match=r"deepspeed/ops/utils_op\.so: not a readable ELF library"):
        read_wheel(path)


@needs_gcc
def test_damaged_library_is_one_line_error(tmp_path):
    """A damaged or truncated library ends in one line, wherever the damage is."""
    whole = compiled(tmp_path / "c", PLAIN, section=container(entry(SASS, 80))).read_bytes()
    spoilt = tmp_path / "spoilt.so"
    for at in range(16, len(whole), max(1, len(whole) // 60)):
        spoilt.write_bytes(whole[:at] + b"\xff\xff\xff\xff" + whole[at + 4 :])
        read_or_refuse(spoilt)
        spoilt.write_bytes(whole[:at])
        read_or_refuse(spoilt)


@needs_gcc
def test_elf_section_offset_beyond_file(tmp_path):
    """Such an offset cannot even be looked for: the system call fails."""
    library = compiled(tmp_path, PLAIN)
    whole = bytearray(library.read_bytes())
    table, size, count = (int.from_bytes(whole[at : at + n], "little") for at, n in ((40, 8), (58, 2), (60, 2)))
    for header in range(table, table + size * count, size):
        kind, flags = whole[header + 4], whole[header + 8]
        if (kind, flags) == (3, 2):  # SHT_STRTAB and SHF_ALLOC: .dynstr
            whole[header + 24 : header + 32] = b"\xff" * 7 + b"\x7f"
    library.write_bytes(whole)
    read_or_refuse(library)


def read_or_refuse(library):
    """Both are fine; anything but a UsageError, or a ToolError of objdump, is not."""
    with suppress(DsrunError):
        read_library(library, "spoilt.so")


@needs_gcc
def test_damaged_gpu_code_message(tmp_path):
    library = compiled(tmp_path / "c", PLAIN, section=container(entry(SASS, 80))[:-3])
    with pytest.raises(UsageError, match="its GPU code is damaged"):
        read_library(library, "utils_op.so")


# --- instructions ---


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("\tmovups (%rdi),%xmm0", "x86-64"),
        ("\tpopcnt %rdi,%rax", "x86-64-v2"),
        ("\tpshufb %xmm1,%xmm0", "x86-64-v2"),
        ("\tvaddps %ymm1,%ymm0,%ymm0", "x86-64-v3"),
        ("\tvfmadd213ss %xmm1,%xmm0,%xmm2", "x86-64-v3"),
        ("\tvcvtps2ph $0x0,%ymm0,%xmm0", "x86-64-v3"),
        ("\tmulx %rax,%rbx,%rcx", "x86-64-v3"),
        ("\tvaddps %zmm1,%zmm0,%zmm0", "x86-64-v4"),
        ("\tvmovups %ymm17,(%rdi)", "x86-64-v4"),
        ("\tvmovups (%rdi),%ymm0{%k1}{z}", "x86-64-v4"),
        ("\tvpternlogd $0xff,%ymm0,%ymm0,%ymm0", "x86-64-v4"),
        ("\tvdpbf16ps %zmm1,%zmm0,%zmm2", "x86-64-v4+avx512_bf16"),
        ("\tvpopcntd %zmm1,%zmm0", "x86-64-v4+avx512_vpopcntdq"),
        ("\tvaddph %zmm1,%zmm0,%zmm2", "x86-64-v4+avx512_fp16"),
        ("\ttdpbf16ps %tmm0,%tmm1,%tmm2", "x86-64+amx_tile"),
    ],
)
def test_cpu_level_of_instruction(line, level):
    assert level_of_code([f"  401000:{line}\n".encode()]) == level


def test_highest_cpu_level_of_blocks_counts():
    blocks = [b"\tvaddps %zmm1,%zmm0,%zmm0\n", b"\tnop\n", b"\tvpopcntd %zmm1,%zmm0\n"]
    assert level_of_code(blocks) == "x86-64-v4+avx512_vpopcntdq"


def test_cpu_level_from_flags():
    assert level_of_flags("GNU C17 -march=x86-64-v3 -O2") == "x86-64-v3"
    assert level_of_flags("GNU C17 -march=rv64gc") is None
    assert highest(["x86-64", None, "x86-64-v3"]) == "x86-64-v3"
    assert highest([None]) is None
    assert split_level("x86-64-v4+avx512_bf16") == (3, frozenset({"avx512_bf16"}))


def test_missing_cpu_features():
    nehalem = ["sse2", "cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"]
    haswell = [*nehalem, "abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"]
    assert lacking("x86-64-v3", haswell) == ()
    assert lacking("x86-64-v4", haswell) == ("avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
    assert lacking("x86-64-v3", nehalem)[:2] == ("abm", "avx")
    assert lacking("x86-64+avx512_bf16", haswell) == ("avx512_bf16",)
