"""Prepared data on disk, found by what it was made from.

An entry is a folder `prepared/<key>/` that holds `meta.json`. It is made under another name and renamed when whole, so
a process killed in between leaves nothing that counts. A file lock lets exactly one of many processes (the ranks of a
node start at the same moment, before any collective exists) do the work while the others wait.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock, Timeout

from dsrun.errors import MissingError
from dsrun.system.variables import cache_root

VERSION = 2
"""Part of every key: raise it when the same input gives other rows."""

Meta = dict[str, Any]

# When this process asked for an entry to be rebuilt, by key; see `_fresh_since`.
_asked: set[str] = set()


def key_of(parts: Mapping[str, Any]) -> str:
    """A name for what is made from these parts; plain JSON values, in any order of keys."""
    text = json.dumps({"version": VERSION, **parts}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def obtain(
    key: str,
    build: Callable[[Path], Meta],
    *,
    overwrite: bool = False,
    notify: Callable[[str], None] = lambda _: None,
    waiting: Callable[[], None] = lambda: None,
) -> tuple[Path, Meta]:
    """The entry's folder and what `build` said of it, from the cache or built now.

    `build` gets an empty folder to fill and returns plain JSON values. With `overwrite` an older entry is built again,
    but once: ranks that come later take what the first has made. `waiting` is called now and then while another process
    works.

    Raises:
        MissingError: the cache cannot be written.
    """
    root = cache_root() / "prepared"
    folder = root / key
    since = _fresh_since(key) if overwrite else 0.0
    found = _read(folder, since)
    if found is not None:
        return folder, found
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = FileLock(str(root / f"{key}.lock"))
        _acquire(lock, notify, waiting)
    except OSError as error:
        raise MissingError(
            f"the cache {root} cannot be written: {error.strerror or error}", fix="set DSRUN_CACHE to a writable folder"
        ) from error
    try:
        found = _read(folder, since)
        return folder, _build(folder, build) if found is None else found
    finally:
        lock.release()


def _acquire(lock: FileLock, notify: Callable[[str], None], waiting: Callable[[], None]) -> None:
    notified = False
    while True:
        try:
            lock.acquire(timeout=3)
            return
        except Timeout:
            waiting()
        if not notified:
            notify("another process is preparing the same data; waiting for it")
            notified = True


def _build(folder: Path, build: Callable[[Path], Meta]) -> Meta:
    """Make the entry; the lock is held, so every other unfinished folder of this key belongs to a dead process."""
    for left_over in folder.parent.glob(f"{folder.name}.tmp-*"):
        shutil.rmtree(left_over, ignore_errors=True)
    work = folder.with_name(f"{folder.name}.tmp-{uuid.uuid4().hex[:8]}")
    work.mkdir()
    try:
        meta = build(work)
        _sync(work)
        meta["finished"] = time.time()
        with (work / "meta.json").open("w", encoding="utf-8") as file:
            json.dump(meta, file)
            file.flush()
            os.fsync(file.fileno())
        if folder.exists():
            # Processes that mapped the old files keep them until they end.
            old = folder.with_name(f"{folder.name}.tmp-old")
            folder.rename(old)
            shutil.rmtree(old, ignore_errors=True)
        work.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return meta


def _sync(work: Path) -> None:
    """Bring the content to the disk before the name that says it is whole, so that a power cut leaves both or none."""
    for path in sorted(work.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


def _read(folder: Path, since: float) -> Meta | None:
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return None
    return meta if meta["finished"] >= since else None


def _fresh_since(key: str) -> float:
    """From when an entry counts as rebuilt: this process's start, as all ranks of a job start before any builds.

    A process that asks a second time means a new rebuild.
    """
    if key in _asked:
        return time.time()
    _asked.add(key)
    return psutil.Process().create_time()
