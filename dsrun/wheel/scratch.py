"""The folder a wheel is compiled in: ours alone, the same path for the same request, gone afterwards."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "dsrun-wheel-"
_PLAIN = re.compile(r"[\w./+-]+", re.ASCII)


def usual_folder(key: str) -> Path:
    """Where the request `key` is compiled when nobody else is there.

    setuptools takes CC apart at spaces and torch hands it on as it is, so it cannot be quoted: a temporary folder whose
    path would need quotes is passed over for /tmp.
    """
    root = tempfile.gettempdir()
    return Path(root if _PLAIN.fullmatch(root) else "/tmp", f"{PREFIX}{key}")


@contextmanager
def build_folder(key: str, *, keep: bool = False) -> Iterator[Path]:
    """An empty folder in the system's temporary folder (TMPDIR), removed at the end unless `keep`.

    Its name follows from the request, because nvcc names a file's internal symbols after the file's absolute path:
    only at the same path does the same source give the same bytes. When that path is taken, by another user or a
    build that runs, the folder gets another name. What a killed build of this request left behind is removed.
    """
    path, lock = _claim(usual_folder(key))
    try:
        yield path
    finally:
        if not keep:
            shutil.rmtree(path, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _claim(wanted: Path) -> tuple[Path, int | None]:
    """The folder `wanted`, emptied and locked for the life of the descriptor; else one with a name of its own."""
    lock = _lock(wanted)
    if lock is None:
        return Path(tempfile.mkdtemp(prefix=f"{wanted.name}-", dir=wanted.parent)), None
    for entry in wanted.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    return wanted, lock


def _lock(path: Path) -> int | None:
    """A lock on the folder `path`, made if need be; None when it cannot be ours.

    The lock is on the folder itself, which its holder removes: whoever gets the lock looks whether the name still
    means the folder that was locked.
    """
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with suppress(OSError):
        mine = os.fstat(descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        named = path.stat(follow_symlinks=False)
        if named.st_ino == mine.st_ino and mine.st_uid == os.geteuid() and not mine.st_mode & 0o022:
            return descriptor
    os.close(descriptor)
    return None
