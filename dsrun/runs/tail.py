"""Reads a ledger that others write, record by record as they come."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dsrun.runs.records import records_in, revive


class LedgerTail:
    """The records that are appended to a JSON-lines file behind its first `begin` bytes, by default after this object
    was made.

    The file need not exist yet; one that is moved aside or replaced is followed by its successor from its first line.
    """

    def __init__(self, path: Path, begin: int | None = None) -> None:
        self._path = path
        self._file, size = self._state()
        self._offset = size if begin is None else begin

    def _state(self) -> tuple[tuple[int, int] | None, int]:
        """Which file it is, and its size."""
        try:
            found = self._path.stat()
        except OSError:
            return None, 0
        return (found.st_dev, found.st_ino), found.st_size

    def new_records(self) -> list[dict[str, Any]]:
        """The complete lines since the last call; none while the file cannot be read."""
        file, size = self._state()
        if file is None:
            return []
        if file != self._file or size < self._offset:
            self._file, self._offset = file, 0
        if size <= self._offset:
            return []
        try:
            with self._path.open("rb") as lines:
                lines.seek(self._offset)
                found = lines.read()
                if self._file != (os.fstat(lines.fileno()).st_dev, os.fstat(lines.fileno()).st_ino):
                    return []  # replaced meanwhile
        except OSError:
            return []
        whole = found[: found.rfind(b"\n") + 1]
        self._offset += len(whole)
        # Of bytes: str.splitlines would also split at U+2028, which may stand in a text in JSON.
        return [revive(record) for record in records_in(whole.splitlines())]
