"""build/ops.toml against DeepSpeed's own builders, and what --ops means."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from dsrun.errors import UsageError
from dsrun.wheel.platform import ops as module
from dsrun.wheel.platform.cxx import CompileProbe, find_cxx, needs, way_to_install
from dsrun.wheel.platform.ops import all_ops, choose_ops, links, missing, op_table

# What DeepSpeed says about each operation, asked in a process of its own: its accelerator is chosen on import.
_ASK = """
import json, sys
from deepspeed.ops.op_builder.all_ops import ALL_OPS
from deepspeed.ops.op_builder.builder import CUDAOpBuilder
from deepspeed.git_version_info import version
rows = {}
for name, builder in ALL_OPS.items():
    filters = type(builder).filter_ccs is not CUDAOpBuilder.filter_ccs if isinstance(builder, CUDAOpBuilder) else False
    ccs = ["5.0", "6.0", "7.0", "7.5", "8.0", "9.0"]
    rows[name] = {
        "variable": builder.BUILD_VAR,
        "library": builder.absolute_name().replace(".", "/"),
        "cuda": isinstance(builder, CUDAOpBuilder),
        "kernels": any(source.endswith(".cu") for source in builder.sources()),
        "lowest": ".".join(builder.filter_ccs(ccs)[0]) if filters else None,
    }
print("answer:" + json.dumps([version.split('+')[0], rows]))
"""


@pytest.fixture(scope="module", params=["cpu", "cuda"])
def upstream(request):
    done = subprocess.run(
        [sys.executable, "-c", _ASK],
        env={**os.environ, "DS_ACCELERATOR": request.param},
        capture_output=True,
        text=True,
        check=True,
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith("answer:"))
    version, rows = json.loads(line.removeprefix("answer:"))
    rows.pop("deepspeed_not_implemented", None)  # a placeholder that builds nothing
    return request.param, version, rows


def everything(_need):
    return True


def nothing(_need):
    return False


def names(ops):
    return [op.name for op in ops]


def test_op_table_matches_installed_deepspeed(upstream):
    kind, version, rows = upstream
    table = {op.name: op for op in op_table(version) if kind in op.accelerators}
    assert set(table) == set(rows)
    for name, row in rows.items():
        op = table[name]
        code = "cuda" if row["kernels"] else "cuda-host" if row["cuda"] else "host"
        assert (op.variable, op.library, op.code) == (row["variable"], row["library"], code)
        assert op.lowest == row["lowest"]


def test_op_table_rows_are_complete():
    seen = set()
    for op in all_ops():
        assert set(op.needs) <= set(needs()), op.name
        for kind in op.accelerators:
            assert kind in ("cpu", "cuda")
            key = (op.name, kind, op.since, op.until)
            assert key not in seen
            seen.add(key)


@pytest.mark.parametrize("version", ["0.19.5", "0.19.6", "0.19.7", "0.19.8"])
def test_op_table_has_one_row_per_name_and_accelerator(version):
    for kind in ("cpu", "cuda"):
        found = [op.name for op in op_table(version) if kind in op.accelerators]
        assert len(found) == len(set(found))


def test_op_table_by_deepspeed_version():
    assert "sparse_attn" in names(op_table("0.19.6"))
    assert "sparse_attn" not in names(op_table("0.19.7"))
    cpu = [op.name for op in op_table("0.19.7") if "cpu" in op.accelerators]
    assert "cpu_lion" not in cpu
    assert "cpu_lion" in names(op_table("0.19.8.dev1+g12"))


def test_default_ops():
    cuda, notices = choose_ops(None, "cuda", available=everything)
    assert set(names(cuda)) == {
        "cpu_adam", "cpu_adagrad", "cpu_lion", "fused_adam", "fused_lamb", "fused_lion", "utils", "pin_memory",
        "async_io",
    }  # fmt: skip
    assert notices == ()
    cpu, _ = choose_ops("default", "cpu", available=everything)
    assert set(names(cpu)) == {
        "cpu_adam", "cpu_adagrad", "cpu_lion", "fused_adam", "pin_memory", "async_io", "deepspeed_shm_comm",
    }  # fmt: skip
    assert {op.code for op in cpu} == {"host"}


def test_default_ops_without_libaio_gives_notice():
    ops, notices = choose_ops(None, "cpu", available=nothing)
    assert "async_io" not in names(ops)
    (notice,) = notices
    assert "async_io (NVMe offload)" in notice
    assert way_to_install("libaio") in notice


def test_default_cuda_op_is_never_left_out():
    """A default op whose CUDA libraries are missing is an error, never left out."""
    ops, _ = choose_ops(None, "cuda", available=nothing)
    assert "fused_adam" in names(ops)
    (finding,) = missing(ops, nothing, cuda="13.0", environ={})
    assert finding.level == "error"
    assert finding.message.startswith("fused_adam, fused_lamb and fused_lion cannot be built without")
    assert finding.fix == "pip install 'cuda-toolkit[cublas,cudart,cusolver,cusparse]==13.0.*'"


def test_ops_all_gives_reason_for_each_left_out():
    ops, notices = choose_ops("all", "cuda", available=lambda need: need != "deepspeed-kernels")
    left = {op.name for op in op_table() if "cuda" in op.accelerators} - set(names(ops))
    assert left == {"fp_quantizer", "ragged_device_ops", "cutlass_ops"}
    for name in left:
        assert any(name in notice for notice in notices)


def test_named_op_with_missing_need_is_an_error():
    """An op asked for by name stays in the list, and what it lacks is an error."""
    ops, notices = choose_ops("async_io", "cpu", available=nothing)
    assert names(ops) == ["pin_memory", "async_io"]
    assert any("pin_memory" in notice for notice in notices)
    (finding,) = missing(ops, nothing)
    assert "async_io" in finding.message
    assert "libaio" in finding.message
    assert finding.fix


@pytest.mark.parametrize("text", ["DS_BUILD_SHM_COMM", "shm_comm", "deepspeed_shm_comm", "shm-comm", " SHM_COMM "])
def test_op_name_spellings(text):
    assert names(choose_ops(text, "cpu", available=everything)[0]) == ["deepspeed_shm_comm"]


def test_op_groups_names_and_exclusions_mix():
    ops, notices = choose_ops("default,-async_io,random_ltd", "cuda", available=lambda need: need != "libaio")
    assert "async_io" not in names(ops)
    assert "random_ltd" in names(ops)
    assert notices == ()


def test_named_op_beside_group_is_not_left_out():
    ops, notices = choose_ops("default,async_io", "cpu", available=nothing)
    assert "async_io" in names(ops)
    assert not any("left out" in notice for notice in notices)


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("fused_adm", "cuda", "did you mean fused_adam"),
        ("utils", "cpu", "exists for cuda only"),
        ("shm_comm", "cuda", "exists for cpu only"),
        ("fp_quantizer", "cuda", "does not compile"),
        ("sparse_attn", "cuda", "went after 0.19.6"),
        (",", "cuda", "names no operation"),
        ("fused_adam,-fused_adam", "cuda", "leaves no operation"),
    ],
)
def test_invalid_ops_are_refused(text, kind, words):
    with pytest.raises(UsageError, match=words):
        choose_ops(text, kind, available=everything)


def test_op_of_later_deepspeed_is_refused():
    with pytest.raises(UsageError, match=r"came with 0\.19\.8"):
        choose_ops("cpu_lion", "cpu", available=everything, version="0.19.7")


def test_broken_op_is_allowed_in_patched_tree():
    """A patched tree may have fixed an op that is broken in the release."""
    assert names(choose_ops("fp_quantizer", "cuda", available=everything, patched=True)[0]) == ["fp_quantizer"]


def test_link_flags_per_op():
    cpu, _ = choose_ops("cpu_adam,async_io,ccl_comm", "cpu", available=everything)
    assert links(cpu, {"CCL_ROOT": "/opt/ccl"}) == {
        "async_io_op": ((), ("-laio",)),
        "deepspeed_ccl_comm_op": ((), ("-L/opt/ccl/lib", "-lccl")),
    }


def test_need_is_probed_by_compiling(tmp_path):
    """A header that is there but does not compile does not count, and neither does a library of that name."""
    cxx = find_cxx(os.environ)
    home = tmp_path / "cuda"
    for name in ("include", "lib64"):
        (home / name).mkdir(parents=True)
    (home / "include/curand_kernel.h").write_text("#error broken\n")

    def available():
        return CompileProbe(cxx=cxx, home=home, python=sys.executable).available("curand")

    assert not available()
    (home / "include/curand_kernel.h").write_text("\n")
    assert not available()
    (home / "lib64/libcurand.so").write_text("not a library")
    assert not available()
    source = tmp_path / "curand.cpp"
    source.write_text('extern "C" void curandGetVersion() {}\n')
    library = str(home / "lib64/libcurand.so")
    subprocess.run([cxx.path, "-shared", "-fPIC", "-o", library, source], check=True)
    assert available()


def test_need_is_probed_by_python_module(tmp_path, monkeypatch):
    probe = CompileProbe(cxx=find_cxx(os.environ), home=None, python=sys.executable)
    assert not probe.available("deepspeed-kernels")
    (tmp_path / "dskernels.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert not probe.available("deepspeed-kernels"), "each question is asked once"
    assert CompileProbe(cxx=find_cxx(os.environ), home=None, python=sys.executable).available("deepspeed-kernels")


def test_oneccl_needs_ccl_root(tmp_path):
    header = tmp_path / "include/oneapi/ccl.hpp"
    header.parent.mkdir(parents=True)
    header.write_text("\n")
    cxx = find_cxx(os.environ)
    assert CompileProbe(cxx=cxx, home=None, python=sys.executable, environ={"CCL_ROOT": str(tmp_path)}).available(
        "oneccl"
    )
    assert not CompileProbe(cxx=cxx, home=tmp_path, python=sys.executable, environ={}).available("oneccl")


@pytest.mark.parametrize(
    ("managers", "environ", "command"),
    [
        (["apt-get"], {}, "apt-get install libaio-dev"),
        (["dnf"], {}, "dnf install libaio-devel"),
        (["yum"], {}, "dnf install libaio-devel"),
        (["conda", "apt-get"], {"CONDA_PREFIX": "/env"}, "conda install 'conda-forge::libaio'"),
        (["conda", "apt-get"], {}, "apt-get install libaio-dev"),
        ([], {}, "install libaio's header and library"),
    ],
)
def test_install_command_of_package_manager(tmp_path, managers, environ, command):
    for name in managers:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    said = way_to_install("libaio", environ={**environ, "PATH": str(tmp_path)})
    assert said.removeprefix("sudo ") == command


def test_every_need_has_install_command():
    for name in needs():
        assert way_to_install(name, cuda="12.8", environ={"PATH": ""})
        assert "{" not in way_to_install(name, cuda="12.8", environ={"PATH": ""})


def test_op_table_imports_no_torch():
    code = (
        "import sys, dsrun.wheel.platform.ops as o; o.op_table(); "
        "print([m for m in ('torch', 'numpy') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
    assert module.__doc__
