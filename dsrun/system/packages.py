"""Installing packages on this machine, and finding the programs that they bring."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from dsrun.errors import MissingError

# Debian first: a machine with several usually has the others for building images.
_SYSTEM = {"apt-get": "apt", "dnf": "dnf", "yum": "dnf", "zypper": "zypper", "pacman": "pacman"}
_COMMANDS = {
    "apt": "apt-get install",
    "dnf": "dnf install",
    "zypper": "zypper install",
    "pacman": "pacman -S",
    "conda": "conda install",
    "pip": "pip install",
}
_NEEDS_ROOT = ("apt", "dnf", "zypper", "pacman")


def package_manager(environ: Mapping[str, str]) -> str | None:
    """ "conda" inside an activated conda environment, else the system's: apt, dnf, zypper or pacman; None without.

    conda comes first: on a cluster nobody is root, and its compilers look into its own prefix.
    """
    path = environ.get("PATH")
    if environ.get("CONDA_PREFIX") and any(shutil.which(name, path=path) for name in ("conda", "mamba")):
        return "conda"
    found = (kind for program, kind in _SYSTEM.items() if shutil.which(program, path=path))
    return next(found, None)


def install_command(manager: str, packages: str) -> str:
    """The command line that installs `packages` (separated by spaces) with `manager`."""
    sudo = "sudo " if manager in _NEEDS_ROOT and os.geteuid() != 0 else ""
    words = [f"'{word}'" if any(sign in word for sign in "[]*=<>:") else word for word in packages.split()]
    return f"{sudo}{_COMMANDS[manager]} {' '.join(words)}"


NEEDED = ("torch", "transformers", "deepspeed", "datasets", "accelerate", "peft")


def require_training_packages() -> None:
    """Raise MissingError unless this Python can train; a login node need not."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise MissingError(f"training needs {', '.join(missing)}", fix="pip install 'dsrun[train]'")


def own_programs_first(environ: Mapping[str, str]) -> dict[str, str]:
    """The change to `environ` that puts this Python's own folder on PATH; none where it is on it already.

    torch compiles with the `ninja` it finds on PATH, and a virtual environment that is called by its path is not on
    it: there may be none, or one of another version, with which torch compiles everything again.
    """
    own = str(Path(sys.executable).parent)
    search = environ.get("PATH", os.defpath)
    return {} if own in search.split(os.pathsep) else {"PATH": own + os.pathsep + search}
