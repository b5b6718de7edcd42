"""Writing and exchanging files and folders atomically, so that a reader never sees half of one; foreign JSON."""

import errno
import json
import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a full disk, an exhausted quota and a limit on the size of files: only the user can make room."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A new file beside `path` that takes its place at the end of the block; an exception leaves `path` as it was."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


# What rename(2) says of a target that is in the way: POSIX allows both first ones for a folder with something in it.
_IN_THE_WAY = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR)


def replace_folder(new: Path, target: Path, *, aside: Path | None = None) -> None:
    """Give the folder `new` the name `target`, and delete what had it before. Raises OSError.

    Where the file system can swap two names, `target` is there at every moment. Elsewhere the old folder lies at
    `aside` (`.NAME.old` beside it) for the instant between two renames."""
    aside = aside or target.with_name(f".{target.name}.old")
    try:
        new.rename(target)
    except OSError as error:
        if error.errno not in _IN_THE_WAY:
            raise
        if exchange(new, target):
            delete_tree(new)
        else:
            delete_tree(aside)
            target.rename(aside)
            new.rename(target)
    # Also that of a process that died in between.
    delete_tree(aside)


def delete_tree(path: Path) -> None:
    """Delete as much of `path` as can be: a disk that fails must not hide the reason why this is done."""
    if path.is_dir() and not path.is_symlink():
        import shutil  # it brings every compression, and few processes delete folders

        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


# <fcntl.h> and <linux/fs.h>.
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def exchange(one: Path, other: Path) -> bool:
    """Swap what `one` and `other` name, atomically; False where kernel, C library or file system cannot.

    renameat2(2) with RENAME_EXCHANGE: local Linux file systems know it, NFS does not."""
    if not sys.platform.startswith("linux"):
        return False
    import ctypes  # few processes exchange folders

    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "renameat2"):
        return False
    result: int = library.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    return result == 0


def is_there(path: Path) -> bool:
    """Whether there is such a file or folder; a name too long for a file system is nowhere, which Python's exists()
    does not know before 3.14."""
    try:
        return path.exists()
    except OSError:
        return False


def as_in_wsl(name: str) -> str | None:
    """What to write for a path of Windows; None for any other name."""
    match = re.match(r"([A-Za-z]):[\\/](.*)", name)
    if match:
        return f"it is a path of Windows; under WSL write /mnt/{match[1].lower()}/" + match[2].replace("\\", "/")
    return f"write it with /: {name.replace(chr(92), '/')}" if "\\" in name else None


def nearest_existing(path: Path) -> Path:
    """`path`, or the closest folder above it that exists."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.exists())


# Whatever goes through the value recursively has Python's 1,000 frames; a tool's parameters or a config need about 20.
_DEEPEST_JSON = 200


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text that may be damaged or hostile.

    Raises ValueError if it is not JSON, json.JSONDecodeError also where it is nested more deeply than 200 levels."""
    try:
        value = json.loads(text)
    except RecursionError:
        value, deep = None, True
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise
    except ValueError as error:  # an integer of more digits than Python converts (sys.get_int_max_str_digits)
        raise json.JSONDecodeError(str(error), "", 0) from None
    else:
        opened = text.count("[") + text.count("{") if isinstance(text, str) else text.count(b"[") + text.count(b"{")
        deep = opened > _DEEPEST_JSON and _is_deep(value)
    if deep:
        raise json.JSONDecodeError("nested too deeply", "", 0)
    return value


def text_of_file(path: Path) -> str:
    """The text in `path`, with marks for what is no UTF-8; "" where none can be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def open_regular(path: Path) -> BinaryIO:
    """A regular file, to be read. Raises OSError, also for a named pipe, which may have no writer for ever."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        is_folder = stat.S_ISDIR(mode)
        why = os.strerror(errno.EISDIR) if is_folder else "Not a regular file"
        raise OSError(errno.EISDIR if is_folder else errno.EINVAL, why, str(path))
    os.set_blocking(fd, True)
    return os.fdopen(fd, "rb")


def read_bytes(path: Path) -> bytes:
    """The content of a regular file. Raises OSError as `open_regular` does."""
    with open_regular(path) as stream:
        return stream.read()


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; {} where there is none that can be read."""
    try:
        found = parse_json(read_bytes(path).decode())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_deep(value: Any) -> bool:
    """Whether lists and objects stand in each other in more than _DEEPEST_JSON levels; without recursion."""
    level = [value]
    for _ in range(_DEEPEST_JSON):
        values = (outer.values() if isinstance(outer, dict) else outer for outer in level)
        level = [inner for each in values for inner in each if isinstance(inner, dict | list)]
    return bool(level)


def sha256_of(path: Path) -> str:
    import hashlib  # OpenSSL, which few commands need

    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
