"""The locks under which torch compiles operations at first use, and those that a killed build has left.

torch.utils.file_baton makes a file called `lock` beside what it compiles, keeps it open, and removes it in the end.
Whoever else loads the operation waits until it is gone, for ever and without a word."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from dsrun.system.host import mount_in
from dsrun.system.process.proc import within
from dsrun.system.terminal.display import duration

STALE_S = 30 * 60
"""A lock on a network file system may be held by another node; nothing is compiled for longer than this."""
LONG_S = 10 * 60
"""A lock that is held for so long is worth a line: few builds take so long."""
_LOOK_S = 10.0
_FIRST_NAMESPACE = Path("pid:[4026531836]")  # PROC_PID_INIT_INO of include/linux/proc_ns.h


class LockState(NamedTuple):
    """A lock as it is found: device and inode, when it was made in nanoseconds since the epoch, and its owner."""

    file: tuple[int, int]
    made_ns: int
    owner: int

    def age_s(self, now: float) -> float:
        return max(0.0, now - self.made_ns / 1e9)


def build_root(environ: Mapping[str, str]) -> Path:
    """The folder that torch compiles into (torch/utils/cpp_extension.py, get_default_build_root)."""
    home = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME", "~")).expanduser() / ".cache")
    return Path(environ.get("TORCH_EXTENSIONS_DIR") or f"{home}/torch_extensions")


def build_locks(root: Path) -> list[Path]:
    """The locks below a folder that torch compiles into: of an operation, or of one in the folder of a Python."""
    return sorted({*root.glob("*/lock"), *root.glob("*/*/lock")})


def abandoned(locks: Iterable[Path], now: float, mounts: str) -> dict[Path, LockState]:
    """Of these locks those that nobody holds, as far as can be told here; `mounts` is the text of /proc/self/mounts.

    One that a process which cannot be seen may hold counts as held for STALE_S: another user's, one on a network file
    system, and in a container one outside of its own root."""
    states = {lock: state for lock in locks if (state := _state(lock)) is not None}
    held = _open_locks() if states else set()
    found = {}
    for lock, state in states.items():
        mount = mount_in(mounts, lock)
        # The root of a container is seen by no other; processes apart may have that of the machine.
        own = mount and mount.point == Path("/") and mount.kind in ("overlay", "fuse.fuse-overlayfs")
        elsewhere = mount is not None and (mount.shared or (_in_container() and not own))
        # What another user has open cannot be seen, but by root.
        is_visible = os.geteuid() in (0, state.owner) and not elsewhere
        if state.file not in held and (is_visible or state.age_s(now) >= STALE_S):
            found[lock] = state
    return found


def _in_container() -> bool:
    """Whether processes of other PID namespaces cannot be seen here."""
    with suppress(OSError):
        return Path("/proc/self/ns/pid").readlink() != _FIRST_NAMESPACE
    return True


def _state(lock: Path) -> LockState | None:
    with suppress(OSError):
        found = lock.stat()
        return LockState((found.st_dev, found.st_ino), found.st_mtime_ns, found.st_uid)
    return None


def _open_locks() -> set[tuple[int, int]]:
    """The locks that processes here have open, by device and inode: a mount may give one file several paths."""
    found = set()
    for process in Path("/proc").glob("[0-9]*/fd"):
        with suppress(OSError):
            for entry in process.iterdir():
                with suppress(OSError):
                    if entry.readlink().name == "lock" and (state := _state(entry)):
                        found.add(state.file)
    return found


def remove_abandoned(environ: Mapping[str, str], notify: Callable[[str], None], told: set[Path]) -> bool:
    """Remove the locks that nobody holds from the folder that torch compiles into under `environ`, each with a line to
    `notify`, which is told once (`told`) of those held for LONG_S, too. False where the file server does not answer."""

    def remove() -> bool:
        for line in _removed(build_root(environ), told):
            notify(line)
        return True

    return within(_LOOK_S, remove, False)


def locks_in_time(environ: Mapping[str, str], seconds: float = _LOOK_S) -> list[Path]:
    """The locks there are; none where the file server does not answer within so many seconds."""
    return within(seconds, lambda: build_locks(build_root(environ)), [])


def _removed(root: Path, told: set[Path]) -> Iterator[str]:
    locks, now = build_locks(root), time.time()
    found = abandoned(locks, now, Path("/proc/self/mounts").read_text()) if locks else {}
    for lock in locks:
        state = _state(lock)
        with suppress(OSError):
            # Only the one that was looked at: meanwhile its build may have ended, and another one begun.
            if state is not None and state == found.get(lock):
                lock.unlink()
                yield f"{lock} is removed: a build that was killed left it {duration(state.age_s(now))} ago"
            elif state is not None and state.age_s(now) > LONG_S and lock not in told:
                told.add(lock)
                yield f"{lock} is {duration(state.age_s(now))} old: what loads that operation waits for its build"
