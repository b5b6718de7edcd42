"""Receives a wheel on this machine and installs it, so that a kill at any moment leaves the old or the new package.

A program of its own that needs nothing but Python and its pip: it is sent to nodes and run by the interpreter of the
environment in question, with what to do as JSON in its argument. The last line on stdout is a JSON object: `how`
("received", "installed", "repaired", "already there", "needs file") or `error`."""

import base64
import contextlib
import csv
import ctypes
import errno
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_LOCK = ".dsrun-wheel.lock"
_STAGE = ".dsrun-install-"
_PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet", "--no-input", "install")
_ALONE = ("--no-deps", "--no-index", "--no-compile", "--no-warn-script-location", "--ignore-installed")
_CHUNK = 1 << 20
_STALE_S = 3600.0  # a copy that nothing was written to for so long belongs to a program that is dead
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # renameat2(2)
_NO_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


class InstallRefused(Exception):
    """Why it was not done, in one line."""


def main() -> int:
    """Do what the JSON in the first argument asks: `receive` (with `size`) or `install` the file `wheel`."""
    wanted = json.loads(sys.argv[1])
    wheel, sha256 = Path(wanted["wheel"]).absolute(), wanted["sha256"]
    try:
        if wanted["do"] == "receive":
            how = receive(wheel, sha256, wanted["size"])
        else:
            if wanted["part"]:
                place(wheel.parent / wanted["part"], wheel, sha256)
            target, name, force = wanted["target"], wanted["name"], wanted["force"]
            how = into_folder(wheel, target) if target else into_environment(wheel, name, sha256, force=force)
        result = {"how": how}
    except (InstallRefused, OSError) as error:
        result = {"error": str(error)}
    print(json.dumps(result))
    return 0


# --- the file ---


def receive(wheel: Path, sha256: str, size: int) -> str:
    """Write `size` bytes of stdin into the folder of `wheel`, and give them its name when they are the wheel."""
    wheel.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_folder(wheel.parent)
    for left in wheel.parent.glob(".*.part"):
        if time.time() - left.stat().st_mtime > _STALE_S:
            left.unlink()
    part = wheel.with_name(f".{os.uname().nodename}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            while size > 0 and (block := sys.stdin.buffer.read(min(_CHUNK, size))):
                file.write(block)
                size -= len(block)
        place(part, wheel, sha256)
    finally:
        part.unlink(missing_ok=True)
    return "received"


def place(part: Path, wheel: Path, sha256: str) -> None:
    """Give the copied file its name, when it is the one that was sent: an incomplete file never has that name."""
    try:
        check_folder(part.parent)
        with part.open("rb") as file:
            if digest_of(file) != sha256:
                raise InstallRefused("the copy differs from the wheel that was sent")
            os.fsync(file.fileno())
        part.replace(wheel)
    finally:
        part.unlink(missing_ok=True)


def digest_of(file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while block := file.read(_CHUNK):
        digest.update(block)
    return digest.hexdigest()


def check_folder(folder: Path) -> None:
    """Refuse a folder in which another user could exchange the wheel before it is installed."""
    about = folder.stat()
    open_to_others = about.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not about.st_mode & stat.S_ISVTX
    if open_to_others or {about.st_uid, folder.lstat().st_uid} - {os.getuid(), 0}:
        raise InstallRefused(
            f"{folder} can be written by others: chmod go-w {folder}, or name another folder with --to"
        )


# --- the environment ---


def into_folder(wheel: Path, target: str) -> str:
    """Install into a folder that nothing else uses."""
    pip(["--target", target, str(wheel)])
    return "installed"


def into_environment(wheel: Path, name: str, sha256: str, *, force: bool) -> str:
    """Install once, though all nodes may share the environment over the network and come at the same time."""
    site = Path(sysconfig.get_path("purelib"))
    with locked(Path(sys.prefix) / _LOCK):
        for left in site.glob(_STAGE + "*"):
            shutil.rmtree(left, ignore_errors=True)
        infos = infos_of(site, name)
        same = bool(infos) and all(installed_digest(info) == sha256 for info in infos)
        if same and len(infos) == 1 and is_intact(site, infos[0]) and not force:
            return "already there"
        if not holds(wheel, sha256):
            return "needs file"
        check_path(site, name)
        replace_package(wheel, site, infos)
    return "repaired" if same and not force else "installed"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait until no other process, on any node, is at it; the lock is of the kind that NFS passes on."""
    with path.open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield


def infos_of(site: Path, name: str) -> list[Path]:
    """The .dist-info folders of package `name`: several, or one without a RECORD, where an installation was killed."""
    return sorted(info for info in site.glob("*.dist-info") if info.name.partition("-")[0].lower() == name)


def installed_digest(info: Path) -> str | None:
    """The SHA-256 of the wheel that the package was installed from, which pip notes (PEP 610)."""
    try:
        noted = json.loads((info / "direct_url.json").read_text())
    except (OSError, ValueError):
        return None
    archive = noted.get("archive_info", {})
    return archive.get("hashes", {}).get("sha256") or str(archive.get("hash", "")).partition("=")[2] or None


def recorded(info: Path) -> list[list[str]]:
    """The rows of RECORD: path, hash, size."""
    try:
        with (info / "RECORD").open(newline="") as file:
            return [row for row in csv.reader(file) if len(row) == 3]
    except OSError:
        return []


def is_intact(site: Path, info: Path) -> bool:
    """Whether every file is the one that RECORD lists."""
    rows = recorded(info)
    return bool(rows) and all(same_file(site / path, kind) for path, kind, _ in rows if kind)


def same_file(path: Path, kind: str) -> bool:
    """Whether the file has the hash, which RECORD writes as sha256=BASE64."""
    try:
        with path.open("rb") as file:
            digest = bytes.fromhex(digest_of(file))
    except OSError:
        return False
    return kind == "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def holds(wheel: Path, sha256: str) -> bool:
    """Whether the file is there and is the one that was meant, where nobody else can exchange it."""
    try:
        with wheel.open("rb") as file:
            same = digest_of(file) == sha256
    except OSError:
        return False
    check_folder(wheel.parent)
    return same


def check_path(site: Path, name: str) -> None:
    """Refuse to install where another copy would be imported: in the user's site-packages, or on PYTHONPATH."""
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(name)
        folder = str(Path(spec.origin).parents[1]) if spec and spec.origin else str(site)
        if folder in sys.path and str(site) in sys.path and sys.path.index(folder) < sys.path.index(str(site)):
            raise InstallRefused(f"{name} in {folder} is imported first: remove it there")


def replace_package(wheel: Path, site: Path, before: list[Path]) -> None:
    """Install beside the package, and exchange the two; what was installed `before` goes afterwards."""
    stage = site / f"{_STAGE}{os.getpid()}"
    try:
        pip(["--prefix", str(stage), str(wheel)])
        (info,) = stage.rglob("*.dist-info")
        scripts = fix_record(info, site)
        old = {Path(path).parts for each in before for path, _, _ in recorded(each)}
        masked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
        try:
            swap(info.parent, info, site, before)
            for script, place in scripts.items():
                script.replace(place)
            remove_others(site, stage, old, recorded(site / info.name))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, masked)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def fix_record(info: Path, site: Path) -> dict[Path, Path]:
    """Make the rows of scripts relative to the environment's site-packages; staged scripts and where they belong."""
    programs = Path(sysconfig.get_path("scripts"))
    places: dict[Path, Path] = {}
    rows = recorded(info)
    for row in rows:
        if row[0].startswith("../"):
            staged = Path(os.path.normpath(info.parent / row[0]))
            places[staged] = programs / staged.name
            row[0] = os.path.relpath(places[staged], site)
    with (info / "RECORD").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    programs.mkdir(exist_ok=True)
    return places


def swap(staged: Path, info: Path, site: Path, before: list[Path]) -> None:
    """Put what is `staged` into `site`: packages, then the new .dist-info, and then the old ones go.

    Between two of these renames the package is whole and importable, and the next push sees that RECORD differs."""
    for entry in sorted(staged.iterdir(), key=lambda entry: entry == info):
        exchange(entry, site / entry.name)
    for number, old in enumerate(before):
        if old.name != info.name:
            old.rename(staged / f"old-{number}")


def exchange(new: Path, place: Path) -> None:
    """Give `new` the name `place`; what was there gets the other name, in one step where the file system can."""
    if not os.path.lexists(place):
        new.rename(place)
        return
    with contextlib.suppress(AttributeError):  # a libc before glibc 2.28
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.renameat2(_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(place), _RENAME_EXCHANGE) == 0:
            return
        if ctypes.get_errno() not in _NO_EXCHANGE:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(place))
    # NFS: for the instant between two renames there is neither.
    place.rename(new.with_name(f"{new.name}.old"))
    new.rename(place)


def remove_others(site: Path, stage: Path, old: set[tuple[str, ...]], new: list[list[str]]) -> None:
    """Remove scripts, and modules beside the package, that the former wheel had and this one has not."""
    kept = {Path(path).parts for path, _, _ in new}
    tops = {parts[0] for parts in kept}
    for parts in old - kept:
        path = Path(os.path.normpath(site.joinpath(*parts)))
        if parts[0] == "..":
            if path.parent == Path(sysconfig.get_path("scripts")):
                path.unlink(missing_ok=True)
        elif parts[0] not in tops and parts[0] != "__pycache__" and os.path.lexists(site / parts[0]):
            (site / parts[0]).rename(stage / f"gone-{parts[0]}")


def pip(arguments: list[str]) -> None:
    """Install with pip and nothing from anywhere else."""
    command = [sys.executable, *_PIP, *_ALONE, *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        if lines and lines[-1].endswith("No module named pip"):
            raise InstallRefused(f"this environment has no pip: {sys.executable} -m ensurepip")
        wrong = [line for line in lines if line.startswith("ERROR")]
        code = done.returncode
        ended = f"ended with exit code {code}" if code > 0 else f"killed by signal {-code}"
        raise InstallRefused(f"pip: {(wrong or lines or [ended])[0].removeprefix('ERROR: ')}")


if __name__ == "__main__":
    sys.exit(main())
