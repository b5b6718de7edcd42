"""A wheel for a request: the cached one, else built, checked and cached."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dsrun.errors import ToolError
from dsrun.wheel.compile.output import FULL, OnEvent
from dsrun.wheel.compile.run import WheelBuild, build_wheel

if TYPE_CHECKING:
    from dsrun.wheel.cache import CacheEntry, WheelCache

PREFIX = "dsrun-wheel-"
_MAKE_ROOM = "make room, or point DSRUN_CACHE to another disk"
_PLAIN = re.compile(r"[\w./+-]+", re.ASCII)


def preferred_folder(key: str) -> Path:
    """Where the request `key` is compiled unless the folder is taken.

    setuptools splits CC at spaces and torch passes it on as it is, so it cannot be quoted: a temporary folder whose
    path would need quotes is replaced by /tmp.
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
    path = preferred_folder(key)
    lock = _lock(path)
    if lock is None:
        path = Path(tempfile.mkdtemp(prefix=f"{path.name}-", dir=path.parent))
    try:
        for entry in path.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        yield path
    finally:
        if not keep:
            shutil.rmtree(path, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _lock(path: Path) -> int | None:
    """A lock on the folder `path`, which is created if missing; None when another process or user has it.

    The holder removes the locked folder itself, so the name is compared with the locked folder afterwards.
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


def cached_build(
    build: WheelBuild,
    store: WheelCache,
    *,
    environ: Mapping[str, str],
    notify: Callable[[str], None],
    on_event: OnEvent,
    force: bool = False,
    keep: bool = False,
) -> CacheEntry:
    """The entry of `build` in `store`, whose wheel is read and compared with its recorded hash.

    Of two processes that need the same wheel one builds it and the other waits. `force`: rebuild a cached wheel, but
    take one that another process has built in the meantime. `keep`: keep the build folder. Raises ToolError when the
    build fails, MissingError when the store cannot be written.
    """
    key = build.request.key
    waited = False

    def report_damage(why: str) -> None:
        notify(f"the stored wheel is damaged and is built again: {why}")

    def report_wait() -> None:
        nonlocal waited
        waited = True
        notify("another process is building this wheel; waiting for it")

    stored = None if force else store.find(key)
    if stored:
        return stored
    with store.exclusive(key, report_wait):
        stored = store.find(key, report_damage) if waited or not force else None
        if stored:
            return stored
        failed_log = store.root / f"{key}.failed.log"
        with store.staging(key) as staged, build_folder(key, keep=keep) as folder:
            if keep:
                notify(f"compiled in {folder}, which is kept")
            build_wheel(build, folder, staged, environ=environ, on_event=on_event, failed_log=failed_log)
            try:
                entry = store.publish(key, staged)
            except OSError as error:
                raise ToolError(
                    f"the wheel could not be stored in {store.root}: {error.strerror or error}",
                    fix=_MAKE_ROOM if error.errno in FULL else "start the build again",
                ) from error
        failed_log.unlink(missing_ok=True)
        return entry
