"""Writing and exchanging files atomically, so that a reader sees the old one or the new one; reading foreign JSON."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A new file beside `path` that takes its place at the end of the block; an exception leaves `path` as it was."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


# <fcntl.h> and <linux/fs.h>.
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def exchange(one: Path, other: Path) -> bool:
    """Swap what `one` and `other` name, atomically; False where kernel, C library or file system cannot.

    renameat2(2) with RENAME_EXCHANGE: local Linux file systems know it, NFS does not.
    """
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "renameat2"):
        return False
    result: int = library.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    return result == 0


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text that may be damaged or hostile.

    Raises ValueError if it is not JSON, json.JSONDecodeError also where it is nested more deeply than Python can read.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise json.JSONDecodeError("nested too deeply", "", 0) from None
