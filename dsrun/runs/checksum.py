"""CRC-32 of files, computed as they are written or afterwards, and fsync(2) beside the thread that writes."""

import zlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypedDict

from dsrun.runs.records import sync_file
from dsrun.system.host import cores

_CHUNK = 8 << 20
# Read at a time: what stays in a core's cache is summed with a tenth less CPU time than 8 MiB.
_READ = 1 << 20
_MAX_THREADS = 16
PATIENCE_S = 2.0
"""Between two signs of life of a process that waits for its threads."""


class ManifestFile(TypedDict):
    """One file of a checkpoint."""

    size: int  # bytes
    crc32: str  # eight hexadecimal digits of zlib.crc32


class ChecksumFile(AbstractContextManager["ChecksumFile"]):
    """A file to write once, front to back, whose checksum is that of the bytes on their way to it.

    An error is kept until the context ends, and nothing is written after it: torch's writer calls `write` from code
    that expects no exception, and would hide the errno."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._stream = path.open("wb", buffering=0)
        self._error: OSError | None = None
        self._crc, self._size = 0, 0

    def __exit__(self, *_: object) -> None:
        try:
            self._stream.close()
        except OSError as error:
            self._error = self._error or error
        if self._error:
            raise self._error

    def write(self, data: bytes | memoryview) -> int:
        left = memoryview(data)
        try:
            while left and not self._error:
                chunk = left[: self._stream.write(left[:_CHUNK])]
                self._crc = zlib.crc32(chunk, self._crc)
                left = left[len(chunk) :]
        except OSError as error:
            self._error = error
        self._size += len(data)
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""

    @property
    def entry(self) -> ManifestFile:
        return _entry(self._size, self._crc)


class ChecksumPool:
    """Takes the files of one folder as they become ready, and brings them to the disk in threads of its own.

    Files that others have written are read for their checksum from the page cache, while fsync(2) waits for the disk:
    both leave the interpreter to the thread that writes."""

    def __init__(self, folder: Path, *, share: int = 1) -> None:
        """`share` processes of this machine seal at the same time, and divide its cores."""
        self.folder = folder
        # One more than there are cores for, as some only wait for the disk, in fsync(2).
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

    def expect(self, file: Path) -> None:
        """Count on a file that `written` tells of later, from any thread; `add` leaves it alone."""
        self._sums[file.relative_to(self.folder).as_posix()] = Future()

    def written(self, file: Path, entry: ManifestFile) -> None:
        """`file`, which was expected, is written, with this size and checksum."""
        self._syncs.append(self._pool.submit(sync_file, file))
        self._sums[file.relative_to(self.folder).as_posix()].set_result(entry)

    @property
    def is_done(self) -> bool:
        """Whether `result` would not wait."""
        return all(task.done() for task in self._tasks())

    def result(self, beat: Callable[[], None] = lambda: None) -> dict[str, ManifestFile]:
        """Size and checksum by relative path, once everything added is on the disk. Raises the first OSError.

        `beat` is called every few seconds while there is nothing to do but wait."""
        while wait(self._tasks(), timeout=PATIENCE_S).not_done:
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
    buffer = bytearray(_READ)
    view = memoryview(buffer)
    with file.open("rb", buffering=0) as stream:
        while count := stream.readinto(buffer):
            # zlib lets other threads run meanwhile.
            value = zlib.crc32(view[:count], value)
            size += count
    return _entry(size, value)


def _entry(size: int, crc: int) -> ManifestFile:
    return {"size": size, "crc32": f"{crc:08x}"}


def threads(wanted: int, share: int = 1) -> int:
    """Threads for `wanted` things to read: no more than this process's share of the cores, nor than 16."""
    return max(1, min(wanted, cores() // max(1, share), _MAX_THREADS))
