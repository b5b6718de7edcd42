"""The sdist and the wheel, built from a clean checkout; installing them is left to `make test-all`."""

from __future__ import annotations

import os
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

ROOT = Path(__file__).resolve().parents[2]

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
        names = [name for name in listed.split("\0") if name and (ROOT / name).is_file()]
        target.mkdir(parents=True)
        # A call for each file takes Python seconds.
        run("cp", "--parents", "--preserve=mode,timestamps", "--target-directory", target, "--", *names, cwd=ROOT)
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
    """Build sdist and from it the wheel, as `python -m build` does, which takes twice the time around its backend."""
    backend = (sys.executable, "-m", "hatchling", "build", "--directory", out)
    run(*backend, "--target", "sdist", cwd=checkout)
    (sdist,) = out.glob("*.tar.gz")
    (out / "unpacked").mkdir()
    # Without the tests, which are most of its files: a wheel that had any would differ from `direct_wheel_files`.
    run("tar", "--extract", "--file", sdist, "--directory", out / "unpacked", "--exclude=*/tests", cwd=out)
    (source,) = (out / "unpacked").iterdir()
    run(*backend, "--target", "wheel", cwd=source)
    (wheel,) = out.glob("*.whl")
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if {"installed", "lowest"} & set(getattr(item, "fixturenames", ())) or "resolve" in item.name:
            item.add_marker(pytest.mark.exhaustive)
