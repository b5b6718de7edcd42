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


# Whatever goes through the value recursively has Python's 1,000 frames; a tool's parameters or a config need about 20.
_DEEPEST_JSON = 200


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text that may be damaged or hostile.

    Raises ValueError if it is not JSON, json.JSONDecodeError also where it is nested more deeply than 200 levels.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        value, deep = None, True
    else:
        opened = text.count("[") + text.count("{") if isinstance(text, str) else text.count(b"[") + text.count(b"{")
        deep = opened > _DEEPEST_JSON and _is_deep(value)
    if deep:
        raise json.JSONDecodeError("nested too deeply", "", 0)
    return value


def _is_deep(value: Any) -> bool:
    """Whether lists and objects stand in each other in more than _DEEPEST_JSON levels; without recursion."""
    level = [value]
    for _ in range(_DEEPEST_JSON):
        values = (outer.values() if isinstance(outer, dict) else outer for outer in level)
        level = [inner for each in values for inner in each if isinstance(inner, dict | list)]
    return bool(level)
