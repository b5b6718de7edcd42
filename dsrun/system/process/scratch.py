"""Temporary folders of dsrun's processes, and those that killed ones have left.

A process holds its folder locked (flock) as long as it lives: whoever gets that lock may remove the folder. On a
network file system a lock may hold on one machine only: the one that made a folder there knows whether it is left."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dsrun.system.host import hostname, mount_in

OWNER = ".owner"
"""In each such folder: the name of the machine on which its process runs."""


@contextmanager
def scratch_folder(prefix: str, root: Path | None = None, *, keep: bool = False) -> Iterator[Path]:
    """A new folder PREFIX… below `root`, by default in TMPDIR; removed at the end unless `keep`. Folders that killed
    processes of this user have left there are removed first. `prefix` begins with "dsrun-"."""
    root = root or Path(tempfile.gettempdir())
    for left in [path for path, known_to in left_folders(root).items() if known_to is None]:
        remove_left(left)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
    fd = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            # systemd-tmpfiles, too, which clears /tmp of what is ten days old, leaves a locked folder (tmpfiles.d(5)).
            fcntl.flock(fd, fcntl.LOCK_SH)
        if not keep:
            with suppress(OSError):  # on a full disk. After the lock: a folder without this file is not looked at
                (folder / OWNER).write_text(hostname())
        yield folder
    finally:
        os.close(fd)
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def left_folders(root: Path) -> dict[Path, str | None]:
    """The folders of `scratch_folder` below `root` of this user that nobody holds locked. With
    the name of the machine that made it, where only that one knows whether the process is gone."""
    found: dict[Path, str | None] = {}
    mount = mount_in(Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace"), root)
    for marker in sorted(root.glob(f"dsrun-*/{OWNER}")):
        with suppress(OSError), _locked(marker.parent):
            if marker.parent.stat().st_uid == os.geteuid():
                host = marker.read_text()
                found[marker.parent] = host if mount and mount.shared and host != hostname() else None
    return found


def remove_left(folder: Path) -> bool:
    """Remove one that this machine knows to be left; False where it is not, after all."""
    with suppress(OSError), _locked(folder):
        shutil.rmtree(folder, ignore_errors=True)
        return True
    return False


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Raises OSError where another process has it locked, or the file system has no locks."""
    fd = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)
