"""Other Pythons on this machine that dsrun supports: Debian's, those on PATH, and pyenv's.

`python -m tests.interpreters` installs the wheel on each of them, and for each minor version that differs from its own
dsrun with all that training needs into `.venv-3.N`, to try checkpoints between them.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

ROOT = Path(__file__).parents[1]


@cache
def others() -> dict[str, Path]:
    """Their executables by version, without the version that runs the tests."""
    supported = SpecifierSet(_project()["requires-python"])
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [Path("/usr/bin/python3"), *sorted(pyenv.glob("versions/3.*/bin/python"))]
    found += [path for folder in os.get_exec_path() for path in sorted(Path(folder).glob("python3.[0-9][0-9]"))]
    versions = {version: path for path in reversed(found) if (version := _version(path))}
    own = platform.python_version()
    return {version: path for version, path in versions.items() if version in supported and version != own}


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


def supported_minors() -> list[str]:
    """The versions that pyproject.toml names: 3.11 …"""
    names = (each.rpartition(" ")[2] for each in _project()["classifiers"] if each.startswith("Programming Language"))
    return sorted(names, key=Version)


def with_packages() -> dict[str, tuple[Path, dict[str, str]]]:
    """Those of them that can train, by version: the executable and the environment that it needs.

    They are those of the variable DSRUN_TEST_PYTHONS; else those whose version differs in its last number only, which
    can import the packages of the tests' own interpreter.
    """
    named = [Path(path) for path in os.environ.get("DSRUN_TEST_PYTHONS", "").split(os.pathsep) if path]
    if named:
        return {_version(path): (path, {}) for path in named}
    same = {v: path for v, path in others().items() if _minor(v) == _minor(platform.python_version())}
    borrowed = {"PYTHONPATH": os.pathsep.join([str(ROOT), sysconfig.get_path("purelib")])}
    return {version: (path, borrowed) for version, path in same.items()}


def _version(python: Path) -> str:
    """Empty where there is none, or one that does not start."""
    if not python.exists():
        return ""
    argv = [python, "-c", "import platform; print(platform.python_version())"]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()


def _install(python: Path, minor: str) -> Path | None:
    """The executable of `.venv-MINOR`, made and filled where it is not there yet; None where that is not possible."""
    folder = ROOT / f".venv-{minor}"
    installed = folder / "bin/python"
    stamp = folder / ".train"
    sources = [ROOT / "pyproject.toml", ROOT / "constraints.txt"]
    if stamp.is_file() and all(stamp.stat().st_mtime > file.stat().st_mtime for file in sources):
        return installed
    # Compiling what is never imported takes longer than unpacking it.
    pip = [installed, "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check"]
    for argv in ([python, "-m", "venv", folder], [*pip, "--constraint", "constraints.txt", "--editable", ".[train]"]):
        if subprocess.run(argv, cwd=ROOT, check=False).returncode:
            print(f"Python {minor} is left out: its packages cannot be installed here", file=sys.stderr)
            return None
    stamp.touch()
    return installed


def main() -> int:
    own = _minor(platform.python_version())
    minors = {_minor(version): path for version, path in others().items() if _minor(version) != own}
    for missing in sorted({*supported_minors()} - {own, *minors}, key=Version):
        # A release of Debian has one version; pyenv has all.
        print(f"warning: Python {missing} is not on this machine: dsrun was not tried on it", file=sys.stderr)
    if not minors:
        return 0
    # The tests of the installed wheel.
    if code := _pytest(minors.values(), "tests/package", "-k", "installed or without_torch"):
        return code
    with ThreadPoolExecutor() as pool:
        installed = [python for python in pool.map(_install, minors.values(), minors) if python]
    if not installed:
        return 0
    return _pytest(installed, "tests/integration/test_interpreters.py", "-n", "2", "--dist", "load")


def _pytest(pythons: Iterable[Path], *args: str) -> int:
    """Run tests on these Pythons."""
    env = os.environ | {"DSRUN_TEST_PYTHONS": os.pathsep.join(map(str, pythons))}
    return subprocess.run([sys.executable, "-m", "pytest", *args], env=env, cwd=ROOT, check=False).returncode


def _minor(version: str) -> str:
    return version.rpartition(".")[0]


if __name__ == "__main__":
    sys.exit(main())
