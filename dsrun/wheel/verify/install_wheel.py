"""Puts a wheel that was copied to this machine in its place and installs it, atomically.

A program of its own that needs nothing but Python and its pip: it is sent to nodes and run by the interpreter of the
environment in question, `python - '{"part": …}' < install_wheel.py`. The last line on stdout is a JSON object:
`wheel` (where it lies), `how` ("installed", "already there") or `error`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

_LOCK = ".dsrun-wheel.lock"
_PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet", "--no-input", "install")
_ALONE = ("--no-deps", "--no-index", "--no-compile")


class Refused(Exception):
    """Why it was not done, in one line."""


def main() -> int:
    """Do what the JSON in the first argument asks: `part`, `wheel`, `sha256`, `name`, and `target` or null."""
    wanted = json.loads(sys.argv[1])
    try:
        wheel = place(Path(wanted["part"]), Path(wanted["wheel"]), wanted["sha256"])
        if wanted["target"]:
            pip(["--target", wanted["target"], str(wheel)])
            how = "installed"
        else:
            how = into_environment(wheel, wanted["name"], wanted["sha256"])
        result = {"wheel": str(wheel), "how": how}
    except (Refused, OSError) as error:
        result = {"error": str(error)}
    print(json.dumps(result))
    return 0


def place(part: Path, wheel: Path, sha256: str) -> Path:
    """Give the copied file its name, when it is the one that was sent: an incomplete file never has that name."""
    part, wheel = part.absolute(), wheel.absolute()
    try:
        if others_may_write(part.parent):
            raise Refused(f"{part.parent} can be written by others")
        with part.open("rb") as file:
            digest = hashlib.sha256()
            while block := file.read(1 << 20):
                digest.update(block)
            os.fsync(file.fileno())
        if digest.hexdigest() != sha256:
            raise Refused("the copy differs from the wheel that was sent")
        part.replace(wheel)
    finally:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
    return wheel


def others_may_write(folder: Path) -> bool:
    """Whether another user could exchange the wheel before it is installed."""
    about = folder.stat()
    if about.st_uid not in (os.getuid(), 0):
        return True
    return bool(about.st_mode & stat.S_IWOTH) and not about.st_mode & stat.S_ISVTX


def into_environment(wheel: Path, name: str, sha256: str) -> str:
    """Install once, though all nodes may share the environment over the network and come at the same time."""
    with locked(Path(sys.prefix) / _LOCK):
        if installed_digest(name) == sha256:
            return "already there"
        pip(["--force-reinstall", str(wheel)])
    return "installed"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait until no other process, on any node, is at it; the lock is of the kind that NFS passes on."""
    with path.open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield


def installed_digest(name: str) -> str | None:
    """The SHA-256 of the wheel that the package was installed from, which pip notes (PEP 610)."""
    try:
        noted = json.loads(metadata.distribution(name).read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        return None
    info = noted.get("archive_info", {})
    return info.get("hashes", {}).get("sha256") or str(info.get("hash", "")).partition("=")[2] or None


def pip(arguments: list[str]) -> None:
    """Install with pip and nothing from anywhere else."""
    command = [sys.executable, *_PIP, *_ALONE, *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        wrong = [line for line in lines if line.startswith("ERROR")]
        raise Refused(f"pip: {(wrong or lines or ['failed'])[0].removeprefix('ERROR: ')}")


if __name__ == "__main__":
    sys.exit(main())
