"""The locks under which torch compiles operations at first use, and those that a killed build has left.

torch.utils.file_baton makes a file called `lock` beside what it compiles, keeps it open, and removes it in the end.
Whoever else loads the operation waits until it is gone, for ever and without a word.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from dsrun.system.mounts import mount_in
from dsrun.system.process.proc import within
from dsrun.system.terminal.display import duration

STALE_S = 30 * 60
"""A lock on a network file system may be held by another node; nothing is compiled for longer than this."""
LONG_S = 10 * 60
"""A lock that is held for so long is worth a line: few builds take so long."""
_LOOK_S = 10.0


def build_root(environ: Mapping[str, str]) -> Path:
    """The folder that torch compiles into (torch/utils/cpp_extension.py, get_default_build_root)."""
    home = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME", "~")).expanduser() / ".cache")
    return Path(environ.get("TORCH_EXTENSIONS_DIR") or f"{home}/torch_extensions")


def build_locks(root: Path) -> list[Path]:
    """The locks below a folder that torch compiles into: of an operation, or of one in the folder of a Python."""
    return sorted({*root.glob("*/lock"), *root.glob("*/*/lock")})


def abandoned_s(lock: Path, now: float, *, shared: bool) -> float | None:
    """The age in seconds of a lock that nobody holds; None for one that is held, or may be on another machine."""
    try:
        age = now - lock.stat().st_mtime
    except OSError:
        return None
    return None if (shared and age < STALE_S) or _is_open(lock) else max(0.0, age)


def _is_open(path: Path) -> bool:
    """Whether a process of this user here has the file open."""
    with suppress(OSError):
        for process in Path("/proc").glob("[0-9]*/fd"):
            with suppress(OSError):
                for entry in process.iterdir():
                    with suppress(OSError):
                        if entry.readlink() == path:
                            return True
    return False


def remove_abandoned(environ: Mapping[str, str], notify: Callable[[str], None], told: set[Path]) -> None:
    """Remove the locks that nobody holds from the folder that torch compiles into under `environ`, each with a line to
    `notify`, which is told once (`told`) of those held for LONG_S, too."""
    within(_LOOK_S, lambda: len(list(map(notify, _removed(build_root(environ), told)))), 0)


def locks_in_time(environ: Mapping[str, str], seconds: float = _LOOK_S) -> list[Path]:
    """The locks there are; none where the file server does not answer within so many seconds."""
    return within(seconds, lambda: build_locks(build_root(environ)), [])


def _removed(root: Path, told: set[Path]) -> Iterator[str]:
    with suppress(OSError):
        mount = mount_in(Path("/proc/self/mounts").read_text(), root)
        for lock in build_locks(root):
            now = time.time()
            age = abandoned_s(lock.resolve(), now, shared=mount is not None and mount.shared)
            with suppress(OSError):
                if age is not None:
                    lock.unlink()
                    yield f"{lock} is removed: a build that was killed left it {duration(age)} ago"
                elif lock not in told and (held := now - lock.stat().st_mtime) > LONG_S:
                    told.add(lock)
                    yield f"{lock} is {duration(held)} old: what loads that operation waits for its build"
