"""Files brought to the disk and summed while the next ones are being written."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from dsrun.runs.schema import ManifestFile
from dsrun.system.host import cores

_CHUNK = 8 << 20
_MAX_THREADS = 16
_PATIENCE_S = 2.0


class ChecksumPool:
    """Takes the files of one folder as they become ready; two tasks a file, in threads of its own.

    The checksum reads what the page cache still holds while fsync(2) waits for the disk: both leave the interpreter
    to the thread that writes, and the checksum costs next to no time of its own.
    """

    def __init__(self, folder: Path, *, share: int = 1) -> None:
        """`share` processes of this machine seal at the same time, and divide its cores."""
        self.folder = folder
        self._pool = ThreadPoolExecutor(threads(_MAX_THREADS, share) + 1, thread_name_prefix="seal")
        self._sums: dict[str, Future[ManifestFile]] = {}
        self._syncs: list[Future[None]] = []

    def add(self, *files: Path) -> None:
        """Begin with `files`, which lie in the folder and are not written to any more."""
        for file in files:
            name = file.relative_to(self.folder).as_posix()
            if name not in self._sums:
                self._syncs.append(self._pool.submit(sync_file, file))
                self._sums[name] = self._pool.submit(sum_of, file)

    @property
    def is_done(self) -> bool:
        """Whether `result` would not wait."""
        return all(task.done() for task in self._tasks())

    def result(self, beat: Callable[[], None] = lambda: None) -> dict[str, ManifestFile]:
        """Size and checksum by relative path, once everything added is on the disk. Raises the first OSError.

        `beat` is called every few seconds while there is nothing to do but wait.
        """
        while wait(self._tasks(), timeout=_PATIENCE_S).not_done:
            beat()
        for sync in self._syncs:
            sync.result()
        return {name: task.result() for name, task in self._sums.items()}

    def _tasks(self) -> list[Future[Any]]:
        return [*self._sums.values(), *self._syncs]

    def close(self) -> None:
        """Drop what has not begun, and end the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def sum_of(file: Path) -> ManifestFile:
    """Size and CRC-32 of a file. Raises OSError."""
    value, size = 0, 0
    buffer = bytearray(_CHUNK)
    view = memoryview(buffer)
    with file.open("rb", buffering=0) as stream:
        while count := stream.readinto(buffer):
            # zlib lets other threads run meanwhile.
            value = zlib.crc32(view[:count], value)
            size += count
    return {"size": size, "crc32": f"{value:08x}"}


def sync_file(file: Path) -> None:
    """Wait until what was written to `file`, by whichever process of this machine, is on the disk."""
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def threads(wanted: int, share: int = 1) -> int:
    """Threads for `wanted` things to read: no more than this process's share of the cores, nor than 16."""
    return max(1, min(wanted, cores() // max(1, share), _MAX_THREADS))
