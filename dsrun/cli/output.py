"""Writing the file that a user named: whole or not at all, and never turning what stands there into something else."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from dsrun.errors import UsageError

WRITABLE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


def put(path: Path, text: str, *, force: bool) -> None:
    """Write `text` into `path` as UTF-8. A link stays a link, a file keeps its permissions, and what is no file, such
    as /dev/null or a named pipe, is written to and never replaced.

    Raises UsageError for a folder, for a file without `force`, for a read-only one, and for what cannot be written.
    """
    content = text.encode("utf-8")
    try:
        mode = _mode(path)
        if mode is not None and stat.S_ISREG(mode) and not force:
            raise UsageError(f"{path} exists", fix="add --force to replace it")
        if mode is None or stat.S_ISREG(mode):
            _replace(path.resolve(), content, mode)
        elif stat.S_ISDIR(mode):
            raise UsageError(f"{path} is a folder", fix="name a file")
        else:
            with path.open("wb") as opened:
                opened.write(content)
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be written: {error.strerror}", fix="name a file in a folder that exists"
        ) from error


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _replace(path: Path, content: bytes, mode: int | None) -> None:
    if mode is not None and not mode & WRITABLE:
        raise UsageError(f"{path} is read-only", fix="name another file, or make it writable")
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        scratch.write_bytes(content)
        if mode is not None:
            scratch.chmod(stat.S_IMODE(mode))
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
