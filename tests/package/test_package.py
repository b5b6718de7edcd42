"""The sdist and the wheel, built for real, and the wheel at work where there is no checkout and no torch."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from dsrun import __version__

pytestmark = pytest.mark.package

ROOT = Path(__file__).resolve().parents[2]
DATA_FOLDERS = ("ds_configs", "slurm", "build")
# Variables that would show the checkout, or another environment, to the programs started here.
LEAKS = (
    "PYTHON",
    "VIRTUAL_ENV",
    "PIP_REQUIRE_VIRTUALENV",
    "RANK",
    "WORLD_SIZE",
    "SLURM_",
    "NO_COLOR",
    "DSRUN_",
)


def shell_environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(LEAKS)}
    return kept | {"CUDA_VISIBLE_DEVICES": "", "COLUMNS": "100"}


def run(
    *argv: str | Path, cwd: Path, code: int = 0, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(arg) for arg in argv],
        cwd=cwd,
        env=shell_environment() | dict(variables or {}),
        text=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == code, f"{argv} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def copy_checkout(target: Path) -> None:
    """The files that a commit of everything would hold; without git, what is left after the known debris."""
    if (ROOT / ".git").exists():
        listed = run("git", "ls-files", "-co", "--exclude-standard", "-z", cwd=ROOT).stdout
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, target / name)
    else:
        debris = shutil.ignore_patterns(".venv", ".*_cache", ".hypothesis", "__pycache__", "*.egg-info", "dist")
        shutil.copytree(ROOT, target, ignore=debris, dirs_exist_ok=True)


@dataclass(frozen=True)
class Built:
    """A clean checkout, the archives made from it, and the file lists: paths inside the package's root."""

    checkout: Path
    wheel: Path
    out: Path
    sdist_files: frozenset[str]
    wheel_files: frozenset[str]

    @cached_property
    def direct_wheel_files(self) -> frozenset[str]:
        """Those of a wheel that is built straight from the checkout, when a test first asks for them."""
        direct = self.out / "direct"
        run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", direct, cwd=self.checkout)
        (wheel,) = direct.glob("*.whl")
        return frozenset(zipfile.ZipFile(wheel).namelist())


def build(checkout: Path, out: Path) -> Built:
    """Build sdist and from it the wheel."""
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, cwd=checkout)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    with tarfile.open(sdist) as archive:
        names = [member.name for member in archive.getmembers() if member.isfile()]
    return Built(
        checkout=checkout,
        wheel=wheel,
        out=out,
        sdist_files=frozenset(name.partition("/")[2] for name in names),
        wheel_files=frozenset(zipfile.ZipFile(wheel).namelist()),
    )


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Built from the checkout as it is."""
    base = tmp_path_factory.mktemp("plain")
    copy_checkout(base / "checkout")
    return build(base / "checkout", base / "out")


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
    assert {"pyproject.toml", "README.md", "Makefile", "constraints.txt", "PKG-INFO"} <= built.sdist_files


def test_wheel_from_sdist_equals_wheel_from_checkout(built):
    assert built.wheel_files == built.direct_wheel_files


@pytest.fixture(scope="session")
def installed(plain: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment that holds the wheel and what it depends on."""
    base = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", base / "venv", cwd=base)
    python = base / "venv" / "bin" / "python"
    quiet = ("--quiet", "--disable-pip-version-check", "--no-input")
    constraints = ("--constraint", plain.checkout / "constraints.txt")
    run(python, "-m", "pip", "install", *quiet, *constraints, plain.wheel, cwd=base)
    return python.parent


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


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--help"], "Usage: dsrun "),
        (["--version"], f"dsrun, version {__version__}"),
        (["train", "--help"], "--global-batch-size"),
        (["prepare", "--help"], "--global-batch-size"),
        (["train", "--explain", "--model", "x"], "per_device_train_batch_size"),
        (["train", "--dry-run", "--model", "demo-t5", "--nproc", "2"], "--nproc-per-node=2"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_commands_without_torch(installed, tmp_path, args, said):
    """Commands that need no torch work without it."""
    done = run(installed / "dsrun", *args, cwd=tmp_path)
    assert said in done.stdout
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []


WORKER = {
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29501",
}


@pytest.mark.parametrize(
    ("command", "variables"),
    [("train", {}), ("prepare", {}), ("train", WORKER)],
    ids=["train", "prepare", "worker"],
)
def test_train_without_torch_names_missing_extra(installed, tmp_path, command, variables):
    """Where torch is missing, one line says what to install."""
    done = run(installed / "dsrun", command, "--model", "demo-t5", cwd=tmp_path, code=4, variables=variables)
    assert done.stdout == ""
    assert re.fullmatch(r"error: [^\n]*torch[^\n]*\(pip install 'dsrun\[train\]'\)\n", done.stderr)
    assert list(tmp_path.iterdir()) == []
