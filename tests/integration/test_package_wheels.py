"""`dsrun build-wheel torch-scatter` by the package's own setup.py: with tiny sources, and as released."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from dsrun.system.files import sha256_of
from dsrun.wheel.platform.wheel_package import wheel_package
from dsrun.wheel.sdist import fetch_sdist
from dsrun.wheel.verify.contents import read_wheel
from tests.integration.builder import Builder
from tests.integration.kept import user_cache

pytestmark = pytest.mark.train
PACKAGE = wheel_package("torch-scatter")
MODULES = {op.name for op in PACKAGE.operations("cpu", "")}
TINY = """
#include <Python.h>
#define INIT(name) PyInit_##name
#define NAMED(name) INIT(name)
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "tiny", __FILE__, -1, nullptr};
PyMODINIT_FUNC NAMED(TORCH_EXTENSION_NAME)() { return PyModule_Create(&module); }
"""


@pytest.fixture(scope="module")
def scatter_sdist():
    return fetch_sdist(PACKAGE.default, PACKAGE.sdist[PACKAGE.default], user_cache() / "sdists", package=PACKAGE)


@pytest.fixture(scope="module")
def scatter_tree(scatter_sdist, tmp_path_factory):
    folder = tmp_path_factory.mktemp("scatter")
    with tarfile.open(scatter_sdist) as archive:
        archive.extractall(folder, filter="data")
    (tree,) = folder.iterdir()
    sources = list((tree / "csrc").glob("*.cpp"))
    assert len(sources) == len(MODULES)
    for source in sources:
        source.write_text(TINY)
    for name in ("cpu", "cuda"):
        shutil.rmtree(tree / "csrc" / name)
    return tree


@pytest.fixture(scope="module")
def scatter_wheel(scatter_tree, tmp_path_factory):
    builder = Builder(tmp_path_factory.mktemp("made"))
    return builder, builder.wheel("torch-scatter", "--source", scatter_tree)


def proved(wheel):
    """What verify-wheel says of each module."""
    command = [sys.executable, "-m", "dsrun", "verify-wheel", str(wheel), "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    told = json.loads(done.stdout)
    return done.returncode, {each["op"]: each["result"] for each in told["operations"]}


def test_modules_of_another_package_are_built_and_load(scatter_wheel):
    _, wheel = scatter_wheel
    report = read_wheel(wheel)
    assert {library.op for library in report.libraries} == MODULES
    assert json.loads((wheel.parent / "WHEEL.json").read_text())["ops"]["built"] == sorted(MODULES)
    assert proved(wheel) == (0, dict.fromkeys(MODULES, "loaded"))


def test_wheel_of_another_package_is_the_same_in_another_folder(scatter_wheel, scatter_tree, tmp_path):
    _, wheel = scatter_wheel
    again = Builder(tmp_path).wheel("torch-scatter", "--source", scatter_tree)
    assert (again.name, sha256_of(again)) == (wheel.name, sha256_of(wheel))


def test_wheel_of_another_package_is_taken_from_a_store(scatter_wheel, scatter_tree, tmp_path):
    maker, wheel = scatter_wheel
    place = maker.cache / "wheels"
    code, out, err = Builder(tmp_path).run("torch-scatter", "--source", scatter_tree, "--find-links", place)
    assert (code, sha256_of(Path(tmp_path, out.strip()))) == (0, sha256_of(wheel)), err
    assert f"taken from {place}" in err


@pytest.mark.exhaustive
@pytest.mark.timeout(1500)
def test_released_sources_are_compiled_and_load(scatter_sdist, tmp_path):
    builder = Builder(tmp_path)
    (builder.cache / "sdists").mkdir(parents=True)
    (builder.cache / "sdists" / scatter_sdist.name).symlink_to(scatter_sdist)
    assert proved(builder.wheel("torch-scatter")) == (0, dict.fromkeys(MODULES, "loaded"))
