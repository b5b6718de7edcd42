"""A finished wheel against what was asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dsrun.wheel.compile.assemble import expected_code, wrong_with_wheel
from dsrun.wheel.compile.compile_wheel import group_ops
from dsrun.wheel.platform.ops import op_table
from dsrun.wheel.verify.contents import WheelLibrary, WheelReport
from tests.unit.wheel.test_wheel_request import CUDA

TABLE = {op.name: op for op in op_table("0.19.8") if "cuda" in op.accelerators}
OPS = (TABLE["fused_adam"], TABLE["utils"])
REQUEST = replace(CUDA, archs="8.0;9.0+PTX", ops=("fused_adam", "utils"))


def library(name, sass=(), ptx=()):
    return WheelLibrary(
        path=f"{TABLE[name].library}.cpython-311-x86_64-linux-gnu.so",
        size=1000,
        op=name,
        sass=sass,
        ptx=ptx,
        needed=(),
        glibc=None,
        glibcxx=None,
        cpu_level=None,
        cxx11_abi=None,
    )


REPORT = WheelReport(
    path=Path("w.whl"),
    sha256="",
    size=1,
    name="deepspeed",
    version=f"0.19.8+{REQUEST.local_version}",
    local=REQUEST.local_version,
    python="cp311",
    abi="cp311",
    platform="linux_x86_64",
    torch="2.13",
    cuda="13.0",
    accelerator="cuda",
    installed_ops=("fused_adam", "utils"),
    libraries=(library("fused_adam", ("8.0", "9.0"), ("9.0",)), library("utils")),
)


def wrong(request=REQUEST, ops=OPS, **changes):
    return wrong_with_wheel(replace(REPORT, **changes), request, ops)


def test_correct_wheel_has_no_problem():
    assert wrong() == []


def test_missing_op():
    assert wrong(libraries=REPORT.libraries[:1]) == ["utils is not in it"]


def test_similar_library_name_is_not_the_op():
    other = replace(library("utils"), path="deepspeed/ops/utils_op2.so")
    assert wrong(libraries=(REPORT.libraries[0], other)) == ["utils is not in it"]


def test_op_absent_from_installed_ops():
    """DeepSpeed would compile an op again that installed_ops does not name."""
    (said,) = wrong(installed_ops=("utils",))
    assert said.startswith("fused_adam is compiled, but")


def test_gpu_op_without_gpu_code():
    (said,) = wrong(libraries=(library("fused_adam"), library("utils")))
    assert said == "fused_adam contains no GPU code: DeepSpeed built its CPU variant"


def test_missing_sass_arch():
    assert wrong(libraries=(library("fused_adam", ("9.0",), ("9.0",)), library("utils"))) == [
        "fused_adam has no SASS for 8.0, only for 9.0"
    ]


def test_missing_ptx():
    assert wrong(libraries=(library("fused_adam", ("8.0", "9.0")), library("utils"))) == [
        "fused_adam has no PTX for 9.0, only for none"
    ]


def test_extra_sass_arch_is_accepted():
    assert wrong(libraries=(library("fused_adam", ("7.5", "8.0", "9.0"), ("9.0",)), library("utils"))) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"accelerator": "cpu"}, "its accelerator is cpu, not cuda"),
        ({"torch": "2.12"}, "its torch is 2.12, not 2.13"),
        ({"cuda": None}, "its CUDA is none, not 13.0"),
        ({"version": "0.19.8"}, f"its version is 0.19.8, not 0.19.8+{REQUEST.local_version}"),
        ({"python": "cp312"}, "its Python is cp312, not cp311"),
    ],
)
def test_wheel_for_another_target(changes, said):
    assert wrong(**changes) == [said]


@pytest.mark.parametrize(
    ("archs", "lowest", "sass", "ptx"),
    [
        ("7.5;8.0;9.0+PTX", None, {"7.5", "8.0", "9.0"}, {"9.0"}),
        ("7.5+PTX;8.0", "8.0", {"8.0"}, set()),
        ("9.0;10.0;12.1+PTX", "9.0", {"9.0", "10.0", "12.1"}, {"12.1"}),
        ("7.0", "8.0", set(), set()),
    ],
)
def test_expected_sass_and_ptx_of_op(archs, lowest, sass, ptx):
    assert expected_code(archs, lowest) == (sass, ptx)


def test_op_with_lowest_arch_skips_lower_sass():
    """An op that leaves low architectures out is judged by the others."""
    op = replace(TABLE["fused_adam"], lowest="9.0")
    libraries = (library("fused_adam", ("9.0",), ("9.0",)), library("utils"))
    assert wrong(ops=(op, TABLE["utils"]), libraries=libraries) == []


def test_ops_build_separately_except_pin_memory():
    """Each op is a build of its own, but for those that bring pin_memory with them."""
    names = ("utils", "async_io", "fused_adam", "pin_memory", "cpu_adam")
    groups = [tuple(op.name for op in group) for group in group_ops([TABLE[name] for name in names])]
    assert groups == [("async_io", "pin_memory"), ("fused_adam",), ("utils",), ("cpu_adam",)]
