"""CPU levels from /proc/cpuinfo, and the compiler wrapper that puts one in the place of -march=native."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dsrun.errors import UsageError
from dsrun.wheel.compile.context import cluster_level, node_level
from dsrun.wheel.compile.wrappers import compiler_environment
from dsrun.wheel.platform import cpu
from dsrun.wheel.platform.cpu import (
    common_level,
    default_level,
    host_level,
    identity,
    level_of,
    resolve_level,
)
from dsrun.wheel.platform.cxx import c_compiler, find_cxx

V2 = "fpu cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3"
V3 = f"{V2} abm avx avx2 bmi1 bmi2 f16c fma movbe xsave"
V4 = f"{V3} avx512bw avx512cd avx512dq avx512f avx512vl"
ARM = "fp asimd evtstrm aes crc32"
ARM82 = f"{ARM} atomics fphp asimdhp asimdrdm dcpop"
X86 = platform.machine() == "x86_64"
needs_x86 = pytest.mark.skipif(not X86, reason="compiles for x86-64")
needs_objdump = pytest.mark.skipif(shutil.which("objdump") is None, reason="no objdump")
# As DeepSpeed's loops: vectorised by the compiler for whatever -march says, and by hand for the define.
LOOP = """
#if defined(__AVX512__)
const char* simd = "512";
#elif defined(__AVX256__)
const char* simd = "256";
#elif defined(__SCALAR__)
const char* simd = "scalar";
#else
const char* simd = "none";
#endif
void step(float* x, const float* y, long n) { for (long i = 0; i < n; ++i) x[i] = x[i] * y[i] + 1.5f; }
"""
DEEPSPEEDS_FLAGS = ["-O3", "-g", "-march=native", "-fopenmp", "-D__AVX512__", "-mprefer-vector-width=512"]


def cpuinfo(*flags: str, key: str = "flags") -> str:
    return "".join(f"processor\t: {n}\n{key}\t\t: {line}\n\n" for n, line in enumerate(flags))


@pytest.mark.parametrize(
    ("text", "level"),
    [
        (cpuinfo("fpu sse sse2"), "x86-64"),
        (cpuinfo(V2), "x86-64-v2"),
        (cpuinfo(V3), "x86-64-v3"),
        (cpuinfo(V3.replace("fma ", "")), "x86-64-v2"),
        (cpuinfo(V4), "x86-64-v4"),
        (cpuinfo(V4.replace("avx512vl", "")), "x86-64-v3"),
        (cpuinfo(V4.replace("movbe", "")), "x86-64-v2"),
        (cpuinfo(V4, V3), "x86-64-v3"),
        (cpuinfo(ARM, key="Features"), "armv8-a"),
        (cpuinfo(ARM82, key="Features"), "armv8.2-a"),
        (cpuinfo(f"{ARM82} sve", key="Features"), "armv8.2-a+sve"),
        (cpuinfo(f"{ARM} sve", key="Features"), "armv8-a"),
        ("cpu\t\t: POWER9, altivec supported\n", "native"),
        ("", "native"),
    ],
)
def test_cpu_level_from_cpuinfo(text, level):
    assert host_level(text) == level


@needs_x86
def test_cpu_level_matches_glibc_loader():
    """glibc's own loader lists the levels that it would search on this machine (glibc-hwcaps)."""
    loader = Path("/lib64/ld-linux-x86-64.so.2")
    said = subprocess.run([loader, "--help"], capture_output=True, text=True, check=False).stdout
    supported = set(re.findall(r"^\s+(x86-64-v\d) \(supported", said, re.MULTILINE))
    if not supported:
        pytest.skip("this loader does not list levels")
    assert host_level(Path("/proc/cpuinfo").read_text()) == max(supported)


def test_common_cpu_level():
    assert common_level(["x86-64-v4", "x86-64-v3", "x86-64-v4"]) == "x86-64-v3"
    assert common_level(["x86-64-v2", "x86-64"]) == "x86-64"
    assert common_level(["armv8.2-a+sve", "armv8-a"]) == "armv8-a"
    assert common_level(["znver4", "znver4"]) == "znver4"
    for levels in (["x86-64-v3", "armv8-a"], ["znver4", "x86-64-v3"], []):
        with pytest.raises(UsageError, match="no CPU level common"):
            common_level(levels)


def test_default_cpu_level():
    assert default_level("x86-64-v4") == "x86-64-v3"
    assert default_level("x86-64-v2") == "x86-64-v2", "a wheel that does not run where it was built"
    assert default_level("armv8.2-a+sve") == "armv8-a"
    assert default_level("native") == "native"


def test_native_cpu_level_identity_depends_on_processor():
    """The level "native" means another thing on another processor."""
    assert identity("x86-64-v3") == "x86-64-v3"
    one, other = identity("native", cpuinfo(V4)), identity("native", cpuinfo(V3))
    assert one != other
    assert one == identity("native", cpuinfo(V4, V4) + "cpu MHz : 2400\nbogomips : 4800\n")
    assert re.fullmatch(r"native\.\w+\.[0-9a-f]{8}", one)
    assert level_of(V3.split()) == "x86-64-v3"


@needs_x86
@pytest.mark.parametrize(
    ("name", "define"),
    [
        ("x86-64-v2", "-D__SCALAR__"),
        ("x86-64-v3", "-D__AVX256__"),
        ("x86-64-v4", "-D__AVX512__"),
        ("haswell", "-D__AVX256__"),
        ("skylake-avx512", "-D__AVX512__"),
        ("ivybridge", "-D__SCALAR__"),
        ("native", ""),
    ],
)
def test_simd_define_of_cpu_level(name, define):
    """The compiler itself says which vector width a level has."""
    level = resolve_level(find_cxx(os.environ), name)
    assert (level.define, level.flag) == (define, f"-march={name}" if define else "")


@needs_x86
def test_unknown_cpu_level_is_refused():
    with pytest.raises(UsageError, match=r"does not know .*haswel.*did you mean haswell"):
        resolve_level(find_cxx(os.environ), "haswel")
    with pytest.raises(UsageError, match=r"does not know .*'nope'") as refused:
        resolve_level(find_cxx(os.environ), "nope")
    assert "note" not in str(refused.value)  # a word of the compiler's message and no processor
    with pytest.raises(UsageError, match="not the name of a processor"):
        resolve_level(find_cxx(os.environ), "x; rm -rf /")


def arm_compiler(folder: Path) -> Path:
    """A compiler that takes armv8.2-a+sve as -march and neoverse-n1 as -mcpu only."""
    folder.mkdir(exist_ok=True)
    script = folder / "g++"
    script.write_text(
        "#!/bin/sh\n"
        'case "$*" in *-march=armv8.2-a+sve*) sve=1 ;; *-mcpu=neoverse-n1*|*-march=armv8-a*) ;; *-m*) exit 1 ;; esac\n'
        'echo "#define __aarch64__ 1"; echo "#define __GNUC__ 12"; echo "#define __cplusplus 201703L"\n'
        '[ -n "$sve" ] && echo "#define __ARM_FEATURE_SVE 1"; exit 0\n'
    )
    script.chmod(0o755)
    return script


def test_arm_cpu_levels(tmp_path):
    cxx = find_cxx(os.environ, str(arm_compiler(tmp_path)))
    flags = [resolve_level(cxx, name) for name in ("armv8-a", "armv8.2-a+sve", "neoverse-n1")]
    assert [(level.flag, level.define) for level in flags] == [
        ("-march=armv8-a", "-D__NEON__"),
        ("-march=armv8.2-a+sve", "-D__SVE__"),
        ("-mcpu=neoverse-n1", "-D__NEON__"),
    ]


def echo_compiler(folder: Path) -> Path:
    """A compiler that prints each argument on a line, but answers like g++ about itself."""
    folder.mkdir(parents=True, exist_ok=True)
    real = find_cxx(os.environ).path
    for name in ("g++", "gcc"):
        script = folder / name
        script.write_text(f'#!/bin/sh\ncase "$*" in *-dM*) exec {real} "$@" ;; esac\nprintf "%s\\n" {name} "$@"\n')
        script.chmod(0o755)
    return folder / "g++"


def said(*argv: object) -> list[str]:
    return subprocess.run([*map(str, argv)], capture_output=True, text=True, check=True).stdout.splitlines()


@needs_x86
def test_compiler_wrapper_replaces_flags(tmp_path):
    cxx = find_cxx(os.environ, str(echo_compiler(tmp_path / "a folder")))
    wrapper = Path(compiler_environment(tmp_path / "our's", cxx, "x86-64-v3")["CXX"])
    odd = ['-DNAME="it\'s"', "a file.cpp", "$HOME", "`x`", "*", ""]
    got = said(wrapper, "-O3", "-march=native", "-mtune=native", "-D__AVX512__", "-g", *odd, "-D__AVX512F__")
    assert got == ["g++", "-O3", "-march=x86-64-v3", "-D__AVX256__", "-g", *odd, "-D__AVX512F__"]
    assert said(wrapper, "-O2", "x.cpp") == ["g++", "-O2", "x.cpp"], "what asked for no processor gets none"
    assert said(wrapper, "-mcpu=native", "-D__SCALAR__=1") == ["g++", "-march=x86-64-v3", "-D__AVX256__"]


@needs_x86
def test_compiler_wrapper_native_keeps_deepspeed_flags(tmp_path):
    cxx = find_cxx(os.environ, str(echo_compiler(tmp_path)))
    wrapper = Path(compiler_environment(tmp_path / "ours", cxx, "native")["CXX"])
    assert said(wrapper, "-march=native", "-D__AVX512__", "-g") == [
        "g++",
        "-march=native",
        "-D__AVX512__",
        "-g",
    ]


@needs_x86
def test_compiler_wrapper_debug_cache_and_extra_flags(tmp_path):
    cxx = find_cxx(os.environ, str(echo_compiler(tmp_path)))
    cache = tmp_path / "ccache"
    cache.write_text('#!/bin/sh\necho cached; exec "$@"\n')
    cache.chmod(0o755)
    wrapper = Path(
        compiler_environment(
            tmp_path / "ours",
            cxx,
            "x86-64-v3",
            debug=False,
            launcher=[str(cache)],
            append=["-ffile-prefix-map=/a b=."],
        )["CXX"]
    )
    got = said(wrapper, "-g", "-ggdb3", "-g2", "-gdwarf-5", "-gencode", "-march=native")
    assert got == ["cached", "g++", "-gencode", "-march=x86-64-v3", "-ffile-prefix-map=/a b=."]


@needs_x86
def test_compiler_wrapper_link_flags_per_library(tmp_path):
    cxx = find_cxx(os.environ, str(echo_compiler(tmp_path)))
    links = {"async_io_op": (("-Wl,--as-needed",), ("-L/a b", "-laio"))}
    environment = compiler_environment(tmp_path / "ours", cxx, "x86-64-v3", links=links)
    assert environment == {"CXX": str(tmp_path / "ours/g++"), "CC": str(tmp_path / "ours/gcc")}
    name = "build/lib/async_io_op.cpython-311-x86_64-linux-gnu.so"
    for compiler, program in (("CXX", "g++"), ("CC", "gcc")):
        got = said(environment[compiler], "-shared", "x.o", "-o", name)
        assert got == [program, "-Wl,--as-needed", "-shared", "x.o", "-o", name, "-L/a b", "-laio"]
    assert said(wrapper := environment["CXX"], "x.o", "-o", "cpu_adam_op.so") == [
        "g++",
        "x.o",
        "-o",
        "cpu_adam_op.so",
    ]
    assert said(wrapper, "-c", "async_io_op.cpp", "-o", "async_io_op.o")[-1] == "async_io_op.o"


def compiled(wrapper: Path | str, folder: Path, *flags: str) -> Path:
    source = folder / "loop.cpp"
    source.write_text(LOOP)
    argv = [wrapper, *DEEPSPEEDS_FLAGS, *flags, "-fPIC", "-c", source, "-o", folder / "loop.o"]
    subprocess.run(argv, check=True)
    return folder / "loop.o"


@needs_x86
@needs_objdump
@pytest.mark.parametrize(
    ("level", "simd", "registers"), [("x86-64-v3", b"256", {"ymm"}), ("x86-64-v4", b"512", {"zmm"})]
)
def test_compiler_wrapper_simd_in_machine_code(tmp_path, level, simd, registers):
    result = compiled(Path(compiler_environment(tmp_path / "ours", find_cxx(os.environ), level)["CXX"]), tmp_path)
    assert simd in result.read_bytes()
    text = subprocess.run(["objdump", "-d", result], capture_output=True, text=True, check=True).stdout
    used = set(re.findall(r"%([yz]mm)\d", text))
    assert registers <= used
    assert used <= {"ymm", "zmm"} if level == "x86-64-v4" else used == {"ymm"}


@needs_x86
def test_compiler_wrapper_dependency_files(tmp_path):
    """Dependency files (-MMD) come out as the compiler itself writes them."""
    (tmp_path / "part.h").write_text("\n")
    source = tmp_path / "x.cpp"
    source.write_text('#include "part.h"\n')
    wrapper = Path(compiler_environment(tmp_path / "ours", find_cxx(os.environ), "x86-64-v3")["CXX"])
    argv = [wrapper, "-MMD", "-MF", tmp_path / "x.o.d", "-march=native", "-c", source, "-o", tmp_path / "x.o"]
    subprocess.run(argv, check=True)
    depends = (tmp_path / "x.o.d").read_text()
    assert depends.startswith(f"{tmp_path}/x.o:")
    assert "part.h" in depends
    assert "ours" not in depends


@needs_x86
def test_compiler_wrapper_compiles_c_as_c(tmp_path):
    """DeepSpeed's has_function compiles C: a C++ compiler would mangle io_submit and find no libaio."""
    environment = compiler_environment(tmp_path / "ours", find_cxx(os.environ), "x86-64-v3")
    (tmp_path / "t.c").write_text("void cos(void); int main(int argc, char** argv) { cos(); return 0; }\n")
    argv = [environment["CC"], tmp_path / "t.c", "-o", tmp_path / "t", "-lm"]
    assert subprocess.run(argv, capture_output=True, check=False).returncode == 0
    assert c_compiler(find_cxx(os.environ)) is not None


@needs_x86
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on this machine")
def test_nvcc_passes_host_flags_to_compiler_wrapper(tmp_path):
    environment = compiler_environment(tmp_path / "ours", find_cxx(os.environ), "x86-64-v3")
    (tmp_path / "k.cu").write_text(LOOP + "__global__ void k(float* x) { x[threadIdx.x] += 1; }\n")
    host = ["-Xcompiler", "-march=native", "-Xcompiler", "-D__AVX512__,-O3"]
    argv = [
        "nvcc",
        "-arch=sm_80",
        "-ccbin",
        environment["CC"],
        *host,
        "-c",
        tmp_path / "k.cu",
        "-o",
        tmp_path / "k.o",
    ]
    subprocess.run(argv, check=True)
    assert b"zmm" not in subprocess.run(["objdump", "-d", tmp_path / "k.o"], capture_output=True, check=True).stdout
    assert b"256\0" in (tmp_path / "k.o").read_bytes()


@needs_x86
def test_torch_accepts_compiler_wrapper(tmp_path):
    """Its check looks at the name and at what -v prints (check_compiler_ok_for_platform)."""
    wrapper = Path(compiler_environment(tmp_path / "ours", find_cxx(os.environ), "x86-64-v3")["CXX"])
    assert wrapper.name == find_cxx(os.environ).path.name
    code = f"""
import sys
sys.path[:] = [p for p in sys.path if p]
from torch.utils import cpp_extension as e
print(e.check_compiler_ok_for_platform({str(wrapper)!r}), e.check_compiler_is_gcc({str(wrapper)!r}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]
    assert cpu.PORTABLE == "x86-64-v3"


@pytest.mark.parametrize(
    ("features", "level"),
    [
        (["genoa", "ib", "avx2"], "x86-64-v4"),
        (["skylake"], "x86-64-v3"),
        (["Skylake_AVX512"], "x86-64-v4"),
        (["knl", "avx512"], "x86-64-v3"),
        (["x86-64-v3"], "x86-64-v3"),
        (["sse4_2"], "x86-64-v2"),
        (["gpu", "rack7"], None),
        ([], None),
    ],
)
def test_cpu_level_from_node_features(features, level):
    assert node_level(features) == level


def test_cpu_level_of_cluster():
    assert cluster_level([["milan"], ["genoa"], ["genoa"]]) == "x86-64-v3"
    assert cluster_level([["genoa"], ["turin"]]) == "x86-64-v4"
    assert cluster_level([["genoa"], ["rack7"]]) is None, "one unknown node may be anything"
    assert cluster_level([]) is None
