"""The scripts in front of the compilers: what they make of a call."""

from __future__ import annotations

import subprocess

import pytest

from dsrun.wheel.compile.assemble import arch_flags
from dsrun.wheel.compile.wrappers import prefix_maps, write_nvcc_wrapper
from dsrun.wheel.platform.nvcc import Nvcc
from tests.tiny_wheels import compiled, needs_gcc

NVCC = """\
#!/bin/sh
case " $* " in
*" --dryrun "*) echo '#$ cudafe++ {flag} "/dev/null"' >&2 ;;
*) printf '%s\\n' "$@" ;;
esac
"""


@pytest.fixture
def called(tmp_path):
    """A function that calls the wrapper of an nvcc whose dry run shows `flag`; the arguments that nvcc gets."""

    def call(*arguments, flag="--orig_src_path_name", **options):
        real = tmp_path / "nvcc"
        real.write_text(NVCC.format(flag=flag))
        real.chmod(0o755)
        nvcc = Nvcc(path=real, version="13.0", home=tmp_path, origin="PATH")
        options = {"cache": None, **options}
        script = write_nvcc_wrapper(tmp_path / "bin/nvcc", nvcc, real, trees=tmp_path / "trees", **options)
        argv = [script, *(each.replace("TREES", str(tmp_path / "trees")) for each in arguments)]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        return done.stdout.replace(str(tmp_path), "").splitlines()

    return call


def test_nvcc_gets_the_source_path_in_its_tree(called):
    arguments = ["-DNAME=a b", "-c", "TREES/fused_adam/csrc/adam/x.cu", "-o", "x.o"]
    assert called(*arguments) == [
        "-DNAME=a b", "-c", "/trees/fused_adam/csrc/adam/x.cu", "-o", "x.o",
        "-Xcudafe", "--orig_src_path_name=csrc/adam/x.cu",
    ]  # fmt: skip


def test_nvcc_that_does_not_know_the_option_does_not_get_it(called):
    assert called("-c", "TREES/fused_adam/x.cu", flag="--m64") == ["-c", "/trees/fused_adam/x.cu"]
    assert called("--version") == ["--version"]


def test_line_tables_of_gpu_code_are_kept_with_symbols_only(called):
    assert called("-lineinfo", "-O3") == ["-O3"]
    assert called("-lineinfo", "-O3", debug=True) == ["-lineinfo", "-O3"]


def test_architectures_and_threads_of_a_setup_script_are_replaced(called):
    """What the setup.py of causal-conv1d and flash-attn gives nvcc, whatever was asked for."""
    own = ["-gencode", "arch=compute_75,code=sm_75", "-gencode=arch=compute_80,code=sm_80", "--threads", "4"]
    wanted = ["-gencode=arch=compute_90,code=sm_90", "-gencode=arch=compute_90,code=compute_90"]
    assert arch_flags("9.0+PTX", None) == wanted
    arguments = [*own, "-std=c++17", "-c", "TREES/causal-conv1d/csrc/x.cu"]
    found = called(*arguments, archs=wanted, standard="c++20")
    assert found == [
        "-std=c++20", "-c", "/trees/causal-conv1d/csrc/x.cu",
        "-Xcudafe", "--orig_src_path_name=csrc/x.cu", *wanted,
    ]  # fmt: skip
    assert called(*own) == own


def test_architectures_below_a_package_s_lowest_are_left_out():
    assert arch_flags("7.5;8.0", "8.0") == ["-gencode=arch=compute_80,code=sm_80"]


def test_nvcc_runs_behind_ccache_alone(called, tmp_path):
    for name, shown in (("ccache", ["cached"]), ("sccache", [])):
        cache = tmp_path / name
        cache.write_text('#!/bin/sh\necho cached\nexec "$@"\n')
        cache.chmod(0o755)
        assert called("-O3", cache=cache) == [*shown, "-O3"]


@needs_gcc
@pytest.mark.parametrize("source", ["tiny.c", "../../tiny.c"])
def test_file_names_are_the_same_however_the_source_is_named(tmp_path, source):
    """ccache makes paths relative to where the compiler runs, in a tree's build folder."""
    tree = tmp_path / "trees/op"
    compiled(tree, "const char *here() { return __FILE__; }")
    (tree / "build/temp").mkdir(parents=True)
    maps = prefix_maps(tmp_path, [tree], tmp_path / "site-packages")
    named = source if source.startswith("..") else str(tree / source)
    argv = ["gcc", "-shared", "-fPIC", *maps, "-o", "out.so", named]
    subprocess.run(argv, cwd=tree / "build/temp", check=True)
    content = (tree / "build/temp/out.so").read_bytes()
    assert b"\0./tiny.c\0" in content
    assert str(tmp_path).encode() not in content
