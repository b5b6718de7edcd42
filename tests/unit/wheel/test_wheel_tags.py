"""The tags of a wheel against a machine's Python and C library, and wheels that are not DeepSpeed's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dsrun.wheel.verify.compatibility import compare_with_gpus
from tests.unit.wheel.test_wheel_compatibility import HOST, NODE, REPORT, found, only


@pytest.mark.parametrize(
    ("python", "abi", "fits"),
    [
        ("cp311", "cp311", True),
        ("cp310", "cp310", False),
        ("cp312", "cp312", False),
        ("py3", "none", True),
        ("py311", "none", True),
        ("py2.py3", "none", True),
        ("cp39", "abi3", True),
        ("cp312", "abi3", False),
        ("py39", "none", True),
        ("py312", "none", False),
    ],
)
def test_python_tags(python, abi, fits):
    codes = [code for _, code in found(replace(REPORT, python=python, abi=abi))]
    assert codes == ([] if fits else ["python_tag"])


def test_python_tag_mismatch_message():
    message = found(replace(REPORT, python="cp310", abi="cp310"))["error", "python_tag"]
    assert message == "is for Python 3.10 (ABI cp310), here is 3.11.7"


def test_platform_tag_mismatch():
    arm = replace(REPORT, platform="linux_aarch64", libraries=(replace(HOST, machine="AArch64"),), installed_ops=())
    assert set(found(arm)) == {("error", "platform_tag"), ("error", "platform_code")}


@pytest.mark.parametrize(
    ("platform", "fits"),
    [
        ("manylinux_2_28_x86_64", True),
        ("manylinux_2_36_x86_64", True),
        ("manylinux_2_37_x86_64", False),
        ("manylinux2014_x86_64", True),
        ("manylinux_2_17_x86_64.manylinux2014_x86_64", True),
        ("manylinux1_x86_64", True),
        ("any", True),
        ("macosx_11_0_x86_64", False),
        ("musllinux_1_2_x86_64", False),
        ("win_amd64", False),
    ],
)
def test_platform_tags(platform, fits):
    codes = [code for _, code in found(replace(REPORT, platform=platform))]
    assert codes == ([] if fits else ["platform_tag"])


# --- other packages ---

# What bitsandbytes and xformers have: libraries for every CUDA, which only those that fit are loaded of.
FOREIGN = replace(
    REPORT,
    name="bitsandbytes",
    version="0.48.0",
    local="",
    python="py3",
    abi="none",
    torch=None,
    cuda=None,
    accelerator=None,
    installed_ops=(),
    libraries=(
        replace(
            HOST, path="bitsandbytes/libbitsandbytes_cuda118.so", op=None, sass=("3.5",), needed=("libcublas.so.11",)
        ),
        replace(HOST, path="bitsandbytes/libbitsandbytes_cpu.so", op=None, cpu_level="x86-64-v4", glibc="2.99"),
    ),
)


def test_wheel_of_another_package_is_listed_and_no_more():
    level, code, message = only(FOREIGN, replace(NODE, absent=("libcublas.so.11",)))
    assert (level, code) == ("info", "not_deepspeed")
    assert message.startswith("is bitsandbytes, not DeepSpeed")
    assert [each.code for each in compare_with_gpus(FOREIGN, NODE.gpus)] == ["not_deepspeed"]


def test_wheel_of_another_package_for_another_python():
    xformers = replace(FOREIGN, name="xformers", python="cp312", abi="cp312")
    assert set(found(xformers)) == {("error", "python_tag"), ("info", "not_deepspeed")}
