"""Wheels of other packages than DeepSpeed: what is known of them, and what is said when something is missing."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from dataclasses import replace

import pytest

from dsrun.datafiles import data_folder, read_toml
from dsrun.errors import UsageError
from dsrun.wheel.compile.assemble import assemble, provenance, wrong_with_wheel
from dsrun.wheel.platform.wheel_package import wheel_package
from dsrun.wheel.verify.compatibility import compare_with_gpus
from dsrun.wheel.verify.contents import read_wheel
from dsrun.wheel.verify.probed_machine import gpus_for
from dsrun.wheel.verify.wheel_check import LOAD_MODULES, arguments, program
from tests.tiny_wheels import SASS, compiled, container, entry, make_wheel, needs_gcc
from tests.unit.wheel.test_wheel_request import CUDA

TABLE = read_toml(data_folder("build") / "packages.toml")
OTHERS = [name for name in TABLE["packages"] if name != "deepspeed"]
REQUEST = replace(CUDA, package="causal-conv1d", version="1.7.0", ops=("causal_conv1d_cuda",))
CODE = "int one(void) { return 1; }"


@pytest.mark.parametrize("name", OTHERS)
def test_package_is_described_for_each_accelerator(name):
    package = wheel_package(name)
    assert package.modules.keys() == package.environment.keys() == package.gib.keys()
    for kind in package.modules:
        ops = package.operations(kind, "")
        assert {op.package for op in ops} == {name}
        assert all(op.library == op.name.replace(".", "/") for op in ops)
    assert package.metadata.keys() <= {key for key in package.metadata if key.startswith(package.variables)}


@pytest.mark.parametrize("name", TABLE["refused"])
def test_refused_package_says_why_and_what_to_do(name):
    with pytest.raises(UsageError) as raised:
        wheel_package(name)
    assert TABLE["refused"][name]["reason"] in raised.value.message
    assert raised.value.fix == TABLE["refused"][name]["fix"]


def test_inputs_name_the_package():
    values = REQUEST.as_dict()
    assert (values["package"], values["version"]) == ("causal-conv1d", "1.7.0")
    assert "deepspeed" not in values
    assert replace(REQUEST, package="deepspeed").as_dict()["deepspeed"] == "1.7.0"


@pytest.fixture
def wheel(tmp_path):
    """A function that makes the wheel of REQUEST out of a part with these files."""

    def make(files):
        (tmp_path / "parts").mkdir()
        tag = "cp311-cp311-linux_x86_64"
        part = make_wheel(tmp_path / "parts", files, name="causal_conv1d", version="1.7.0", tag=tag)
        return assemble([part], tmp_path, REQUEST)

    return make


def kernels(folder, *archs):
    section = container(*(entry(SASS, arch) for arch in archs))
    return compiled(folder / "c", CODE, section=section)


@needs_gcc
def test_wheel_of_another_package_is_read_as_built(wheel, tmp_path):
    report = read_wheel(wheel({"causal_conv1d_cuda.so": kernels(tmp_path, 80, 90)}))
    assert report.path.name.startswith(f"causal_conv1d-1.7.0+{REQUEST.local_version}-cp311-cp311-")
    assert (report.torch, report.cuda, report.accelerator) == ("2.13", "13.0", "cuda")
    assert [library.op for library in report.libraries] == ["causal_conv1d_cuda"]
    ops = wheel_package("causal-conv1d").operations("cuda", "")
    assert wrong_with_wheel(report, REQUEST, ops) == []
    assert (program(report), arguments(report, "/site")) == (LOAD_MODULES, ["--site", "/site", "causal_conv1d_cuda"])
    assert compare_with_gpus(report, gpus_for([(8, 0), (9, 0)])) == []
    assert [each.code for each in compare_with_gpus(report, gpus_for([(7, 5)]))] == ["arch_missing"]


@needs_gcc
def test_missing_architecture_and_missing_module_are_found(wheel, tmp_path):
    report = read_wheel(wheel({"causal_conv1d_cuda.so": kernels(tmp_path, 80)}))
    ops = wheel_package("causal-conv1d").operations("cuda", "")
    assert wrong_with_wheel(report, REQUEST, ops) == ["causal_conv1d_cuda has no SASS for 9.0, only for 8.0"]


def test_wheel_without_its_module_is_found(wheel):
    """As setup.py makes it with CAUSAL_CONV1D_SKIP_CUDA_BUILD."""
    report = read_wheel(wheel({"causal_conv1d/__init__.py": "x = 1\n"}))
    ops = wheel_package("causal-conv1d").operations("cuda", "")
    assert wrong_with_wheel(report, REQUEST, ops) == ["causal_conv1d_cuda is not in it"]
    assert "op_missing" in [each.code for each in compare_with_gpus(report, gpus_for([(8, 0)]))]


def test_wheel_requires_the_torch_it_was_compiled_against(wheel):
    with zipfile.ZipFile(wheel({"causal_conv1d/__init__.py": "x = 1\n"})) as archive:
        info = f"causal_conv1d-{REQUEST.full_version}.dist-info"
        assert "Requires-Dist: torch==2.13.*\n" in archive.read(f"{info}/METADATA").decode()
        assert archive.read(f"{info}/dsrun.json").decode() == provenance(REQUEST)


@needs_gcc
@pytest.mark.train
def test_modules_load_in_a_fresh_interpreter(tmp_path):
    """As text, as `wheel push` sends it: a module that loads, one that lacks a symbol, and one that is not there."""
    compiled(tmp_path / "site", CODE, name="good.so")
    compiled(tmp_path / "site", "int missing(void); int one(void) { return missing(); }", "-Wl,-z,now", name="bad.so")
    command = [sys.executable, "-", "--site", str(tmp_path / "site"), "good", "bad", "absent"]
    done = subprocess.run(command, input=LOAD_MODULES.read_text(), capture_output=True, text=True, check=True)
    told = json.loads(done.stdout.splitlines()[-1])["ops"]
    assert {name: each["result"] for name, each in told.items()} == {
        "good": "loaded",
        "bad": "failed",
        "absent": "failed",
    }
    assert "undefined symbol: missing" in told["bad"]["what"]
