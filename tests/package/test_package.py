"""The sdist and the wheel, built for real, and the wheel at work where there is no checkout and no torch.

It is installed on the Python of the tests and on others of this machine; `make test-pythons` tries every version that
dsrun supports.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import tomllib
import zipfile
from email.parser import BytesParser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from dsrun import __version__
from tests.interpreters import supported_minors, with_packages
from tests.package.conftest import Built, build, copy_checkout, run

pytestmark = pytest.mark.package

OWN = {} if os.environ.get("DSRUN_TEST_PYTHONS") else {platform.python_version(): Path(sys.executable)}
PYTHONS = OWN | {version: python for version, (python, _) in with_packages().items()}
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input", "install")
DATA_FOLDERS = ("ds_configs", "slurm", "build")


@pytest.fixture(scope="session")
def ignored(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Built where git is told to ignore build/, as many people tell it."""
    base = tmp_path_factory.mktemp("ignored")
    copy_checkout(base / "checkout")
    with (base / "checkout" / ".gitignore").open("a", encoding="utf-8") as rules:
        rules.write("build/\n")
    return build(base / "checkout", base / "out")


@pytest.fixture(params=["plain", "ignored"])
def built(request: pytest.FixtureRequest) -> Built:
    """Both of them."""
    return request.getfixturevalue(request.param)


def files_below(checkout: Path, *folders: str) -> set[str]:
    """Paths of all files of these folders, relative to the checkout."""
    return {
        str(path.relative_to(checkout))
        for folder in folders
        for path in (checkout / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_wheel_contents(built):
    """The wheel holds the package and its data folders, and nothing else."""
    expected = files_below(built.checkout, "dsrun")
    expected |= {f"dsrun/_data/{name}" for name in files_below(built.checkout, *DATA_FOLDERS)}
    metadata = {name for name in built.wheel_files if re.match(r"dsrun-[^/]+\.dist-info/", name)}
    assert built.wheel_files - metadata == expected
    assert {name.rpartition("/")[2] for name in metadata} >= {"METADATA", "entry_points.txt", "RECORD"}


def test_wheel_includes_data_files(built):
    """What the programs read at run time is in the wheel."""
    assert {
        "dsrun/recipe/hf_flags.json",
        "dsrun/locale/zh/LC_MESSAGES/dsrun.mo",
        "dsrun/report/page.html.j2",
        "dsrun/report/page.css",
        "dsrun/report/page.js",
        "dsrun/_data/build/gpus.toml",
        "dsrun/_data/slurm/README.md",
        "dsrun/_data/ds_configs/zero2.json",
        "dsrun/_data/ds_configs/zero3_nvme.json",
    } <= built.wheel_files


def test_sdist_contents(built):
    """The sdist holds everything that building and testing need."""
    wanted = files_below(built.checkout, "dsrun", "tests", "bench", "tools", "docs", *DATA_FOLDERS)
    assert wanted <= built.sdist_files
    files = {"pyproject.toml", "README.md", "Makefile", "constraints.txt", "Dockerfile", ".dockerignore", "PKG-INFO"}
    assert files <= built.sdist_files
    assert {"README.zh.md", "CHANGELOG.md", "SECURITY.md", "CITATION.cff", "LICENSE"} <= built.sdist_files


def test_wheel_names_its_license(built):
    """SPDX's name of it, and the text beside the metadata."""
    with zipfile.ZipFile(built.wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        metadata = BytesParser().parsebytes(archive.read(name))
        text = archive.read(name.replace("METADATA", "licenses/LICENSE"))
    assert (metadata["License-Expression"], metadata["License-File"]) == ("Apache-2.0", "LICENSE")
    assert text == (built.checkout / "LICENSE").read_bytes()
    assert not [each for each in metadata.get_all("Classifier") if each.startswith("License")]


def test_wheel_from_sdist_equals_wheel_from_checkout(built):
    assert built.wheel_files == built.direct_wheel_files


def environment(python: Path, base: Path, *packages: str | Path) -> Path:
    """The bin folder of a new environment of this Python that holds these packages."""
    run(python, "-m", "venv", base / "venv", cwd=base)
    run(base / "venv/bin/python", *PIP, *packages, cwd=base)
    return base / "venv/bin"


@pytest.fixture(scope="session", params=PYTHONS)
def installed(request: pytest.FixtureRequest, plain: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment that holds the wheel and what it depends on."""
    python, base = PYTHONS[request.param], tmp_path_factory.mktemp("environment")
    if subprocess.run([python, "-c", "import ensurepip"], capture_output=True, check=False).returncode:
        pytest.skip(f"{python} cannot make environments: Debian has that in python3-venv")
    return environment(python, base, "--constraint", plain.checkout / "constraints.txt", plain.wheel)


@pytest.fixture(scope="session")
def lowest(plain: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with the oldest versions of its dependencies that pyproject.toml allows."""
    base = tmp_path_factory.mktemp("lowest")
    project = tomllib.loads((plain.checkout / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    ranges = map(Requirement, project["dependencies"])
    pins = [f"{each.name}=={spec.version}" for each in ranges for spec in each.specifier if spec.operator == ">="]
    assert len(pins) == len(project["dependencies"])
    return environment(Path(sys.executable), base, plain.wheel, *pins)


@pytest.mark.parametrize("minor", supported_minors())
def test_dependencies_resolve_for_every_python(plain, tmp_path, minor):
    """There are wheels of all pinned dependencies, also for a Python that is not on this machine."""
    only = ("--only-binary=:all:", "--python-version", minor, "--target", tmp_path / "nothing", "--ignore-installed")
    constraints = ("--constraint", plain.checkout / "constraints.txt")
    report = ("--dry-run", "--report", tmp_path / "report.json")
    run(sys.executable, *PIP, *only, *constraints, *report, plain.wheel, cwd=tmp_path)
    chosen = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["install"]
    assert {"dsrun", "click", "psutil"} <= {each["metadata"]["name"] for each in chosen}


def test_older_python_is_refused_for_what_it_is(built):
    """pip names the Python that is needed, and no dependency that has no release for an older one."""
    with zipfile.ZipFile(built.wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        wanted = [Requirement(each) for each in BytesParser().parsebytes(archive.read(name)).get_all("Requires-Dist")]
    older = {"python_version": "3.8", "extra": ""}
    asked = {each.name for each in wanted if each.marker is None or each.marker.evaluate(older)}
    assert not asked & {"click", "auditwheel", "ahocorasick-rs"}


def test_pip_check_of_installed_wheel(installed, tmp_path):
    """The wheel's dependencies fit together."""
    run(installed / "python", "-m", "pip", "check", cwd=tmp_path)


def test_installed_wheel_without_torch(installed, tmp_path):
    """The package is imported from the wheel, and torch is not installed."""
    script = "import dsrun, importlib.util as u; print(dsrun.__file__); print(u.find_spec('torch'))"
    where, torch = run(installed / "python", "-c", script, cwd=tmp_path).stdout.splitlines()
    assert Path(where).is_relative_to(installed.parent)
    assert torch == "None"


@pytest.mark.parametrize("folder", DATA_FOLDERS)
def test_installed_data_folders_complete(installed, plain, tmp_path, folder):
    """Every data folder is found beside the installed package, with all its files."""
    script = (
        "import sys; from dsrun.datafiles import data_folder; folder = data_folder(sys.argv[1]);"
        "print(folder, *(str(p.relative_to(folder)) for p in folder.rglob('*') if p.is_file()), sep='\\n')"
    )
    where, *files = run(installed / "python", "-c", script, folder, cwd=tmp_path).stdout.splitlines()
    assert Path(where).is_relative_to(installed.parent)
    assert {f"{folder}/{name}" for name in files} == files_below(plain.checkout, folder)


# What a login node is for, and what each writes.
LIGHT = {
    "--help": "Usage: dsrun ",
    "--version": f"dsrun, version {__version__}",
    "--version --format json": '"torch": null',
    "train --help": "--global-batch-size",
    "prepare --help": "--global-batch-size",
    "train --explain --model x": "from this follows",
    "train --dry-run --model demo-t5 --nproc 2": "--nproc-per-node=2",
    "config --zero 3": '"stage": 3',
    "plan --model {model} --count shapes --gpus a100-80:8": "ZeRO",
    "render-slurm --nodes 2 -- train --model demo-t5": "#SBATCH --nodes=2",
    "gpus h100": "9.0",
    "wheel list": "",
}
MODEL = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 1000, "max_position_embeddings": 2048,
}  # fmt: skip


def works(bin_folder: Path, command: str, said: str, tmp_path: Path) -> None:
    model, cwd = tmp_path / "model", tmp_path / "cwd"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(MODEL))
    cwd.mkdir()
    done = run(bin_folder / "dsrun", *command.format(model=model).split(), cwd=cwd)
    assert said in done.stdout
    assert "Warning" not in done.stderr
    assert list(cwd.iterdir()) == []


@pytest.mark.parametrize(("command", "said"), LIGHT.items(), ids=LIGHT)
def test_commands_without_torch(installed, tmp_path, command, said):
    """Commands that need no torch work without it."""
    works(installed, command, said, tmp_path)


@pytest.mark.parametrize(("command", "said"), LIGHT.items(), ids=LIGHT)
def test_commands_with_lowest_versions(lowest, tmp_path, command, said):
    """pyproject.toml allows no version of a dependency that is too old."""
    works(lowest, command, said, tmp_path)


def test_findings_of_installed_wheel(installed, tmp_path):
    """The linter of configurations and the diagnosis of logs find what they are for."""
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 3, "cpu_offload": True}}))
    assert "cpu_offload" in run(installed / "dsrun", "config", "check", "ds.json", cwd=tmp_path, code=3).stdout
    (tmp_path / "job.log").write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    assert "memory" in run(installed / "dsrun", "diagnose", "job.log", cwd=tmp_path, code=3).stdout


WORKER = {
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29501",
}


@pytest.mark.parametrize(
    ("command", "variables"),
    [("train", {}), ("prepare", {}), ("data", {}), ("train", WORKER)],
    ids=["train", "prepare", "data", "worker"],
)
def test_train_without_torch_names_missing_extra(installed, tmp_path, command, variables):
    """Where torch is missing, one line says what to install."""
    done = run(installed / "dsrun", command, "--model", "demo-t5", cwd=tmp_path, code=4, variables=variables)
    assert done.stdout == ""
    assert re.fullmatch(r"error: [^\n]*torch[^\n]*\(pip install 'dsrun\[train\]'\)\n", done.stderr)
    assert list(tmp_path.iterdir()) == []
