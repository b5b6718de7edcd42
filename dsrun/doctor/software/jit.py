"""The folders that operations are compiled into at first use: stale locks, network file systems, permissions."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dsrun.doctor.check import Check, failure, fine, warning
from dsrun.doctor.machine import Machine, Target
from dsrun.doctor.mounts import mount_of
from dsrun.doctor.software.compiled_code import compiled_at_start
from dsrun.findings.finding import Finding
from dsrun.messages import Message
from dsrun.system.files import nearest_existing
from dsrun.zero.ops import extension_cache

STALE_S = 30 * 60
"""A lock on a network file system may be held by another node; nothing is compiled for longer than this."""


def look(machine: Machine, target: Target) -> Iterator[Finding]:
    """torch.utils.file_baton waits for ever for a `lock` that a killed process has left."""
    if machine.packages.torch is None:
        return
    found = list(_problems(machine, target))
    yield from found
    if not found:
        yield fine(
            "jit_cache",
            Message(
                "{folder}: no stale lock, on {kind}",
                folder=_shown(_own(machine)),
                kind=_kind(machine, _own(machine)),
            ),
        )


def _problems(machine: Machine, target: Target) -> Iterator[Finding]:
    own = _own(machine)
    ops = compiled_at_start(machine, target, cuda=False)
    for folder in dict.fromkeys((own, _of_torch(machine))):
        for lock in sorted(folder.glob("**/lock")):
            if age := _stale(machine, lock):
                # dsrun train compiles under a lock of its own, and then removes those of torch; other programs wait.
                tell = warning if folder == own else failure
                yield tell(
                    "jit_cache_lock",
                    Message(
                        "{lock} was left {age} ago by a process that is gone: whoever loads this operation waits for "
                        "ever",
                        lock=lock,
                        age=age,
                    ),
                    f"rm {lock}",
                )
    base = nearest_existing(own)
    if not os.access(base, os.W_OK | os.X_OK):
        yield failure(
            "jit_cache_unwritable",
            Message("{folder}: {base} cannot be written", folder=_shown(own), base=base),
            _elsewhere(),
        )
    mount = mount_of(machine, base)
    if mount and mount.shared:
        yield warning(
            "jit_cache_network",
            Message(
                "operations are compiled into {folder}, on a network file system ({kind}): {ops} would be compiled "
                "there: nodes wait for each other's locks, and load code for another's processor"
                if ops
                else "operations are compiled into {folder}, on a network file system ({kind}): nodes wait "
                "for each other's locks, and load code for another's processor",
                folder=_shown(own),
                kind=mount.kind,
                ops=", ".join(ops),
            ),
            Message("{export}, or install a wheel with the operations: dsrun build-wheel", export=_elsewhere()),
        )
    triton = _of_triton(machine)
    triton_mount = mount_of(machine, nearest_existing(triton)) if machine.gpus else None
    if triton_mount and triton_mount.shared:
        yield warning(
            "jit_cache_triton",
            Message(
                "Triton compiles into {folder}, on a network file system ({kind}): ranks wait for each "
                "other, and may hang at their end",
                folder=_shown(triton),
                kind=triton_mount.kind,
            ),
            Message("export TRITON_CACHE_DIR=/tmp/triton_$USER (each node's own disk)"),
        )
    if mount and not mount.shared and "noexec" in mount.options:
        yield failure(
            "jit_cache_noexec",
            Message("{folder} is mounted noexec: compiled operations cannot be loaded", folder=_shown(own)),
            _elsewhere(),
        )


def _own(machine: Machine) -> Path:
    """The folder that dsrun train compiles into."""
    home = machine.environ.get("HOME")
    environ = dict(machine.environ)
    if home and not environ.get("XDG_CACHE_HOME"):
        environ["XDG_CACHE_HOME"] = f"{home}/.cache"
    return extension_cache(environ)


def _of_torch(machine: Machine) -> Path:
    """The folder that every other program compiles into (torch/utils/cpp_extension.py, get_default_build_root)."""
    given = machine.environ.get("TORCH_EXTENSIONS_DIR")
    home = machine.environ.get("XDG_CACHE_HOME") or str(Path(machine.environ.get("HOME", "~")).expanduser() / ".cache")
    return Path(given or f"{home}/torch_extensions")


def _of_triton(machine: Machine) -> Path:
    given = machine.environ.get("TRITON_CACHE_DIR")
    return Path(given) if given else Path(machine.environ.get("HOME", "~")).expanduser() / ".triton"


def _stale(machine: Machine, lock: Path) -> str:
    """How old the lock is, in words, if nobody holds it; "" otherwise."""
    try:
        age = machine.now() - lock.stat().st_mtime
    except OSError:
        return ""
    mount = mount_of(machine, lock)
    if (mount and mount.shared and age < STALE_S) or _is_open(lock):
        return ""
    return f"{age / 3600:.0f} h" if age >= 7200 else f"{max(age, 0) / 60:.0f} min"


def _is_open(path: Path) -> bool:
    """Whether a process of this user here has the file open: torch keeps its lock open until it has compiled."""
    with suppress(OSError):
        for process in Path("/proc").glob("[0-9]*/fd"):
            with suppress(OSError):
                for entry in process.iterdir():
                    with suppress(OSError):
                        if entry.readlink() == path:
                            return True
    return False


def _kind(machine: Machine, folder: Path) -> str:
    mount = mount_of(machine, nearest_existing(folder))
    return mount.kind if mount else Message("a local disk")


def _elsewhere() -> str:
    return Message("export TORCH_EXTENSIONS_DIR=/tmp/torch_extensions_$USER (each node's own disk)")


def _shown(folder: Path) -> str:
    home = str(Path.home())
    return f"~{str(folder).removeprefix(home)}" if str(folder).startswith(f"{home}/") else str(folder)


JIT_CACHE = Check(
    "jit_cache",
    "JIT cache",
    look,
    needs="needs torch",
    finds="locks that a killed process left; a cache on a network file system, mounted noexec, or not writable",
)
