"""The folders that operations are compiled into at first use: stale locks, network file systems, permissions."""

import os
from collections.abc import Iterator
from pathlib import Path

from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.doctor.software.compiled_code import compiled_at_start
from dsrun.findings.conditions import findings_where
from dsrun.findings.finding import Finding
from dsrun.findings.texts import finding_of, text_of
from dsrun.system.build_locks import abandoned, build_locks, build_root
from dsrun.system.files import nearest_existing
from dsrun.system.terminal.display import duration
from dsrun.zero.ops import extension_cache


def look(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    """torch.utils.file_baton waits for ever for a `lock` that a killed process has left."""
    if machine.packages.torch is None:
        return
    found = list(_problems(machine, target))
    yield from found
    if not found:
        own = _own(machine)
        mount = machine.mount(nearest_existing(own))
        yield finding_of("jit_cache", folder=_shown(own), kind=mount.kind if mount else text_of("jit_cache.local"))


def _problems(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    own = _own(machine)
    folder = _shown(own)
    for place in dict.fromkeys((own, build_root(machine.environ))):
        left = abandoned(build_locks(place), machine.now(), machine.text("/proc/self/mounts") or "")
        for lock, state in left.items():
            yield finding_of("jit_cache_lock", lock=lock, age=duration(state.age_s(machine.now())))
    base = nearest_existing(own)
    mount = machine.mount(base)
    ops = ", ".join(compiled_at_start(machine, target, cuda=False)) if mount and mount.shared else ""
    home = Path(machine.environ.get("HOME", "~")).expanduser()
    triton = Path(machine.environ.get("TRITON_CACHE_DIR") or home / ".triton")
    of_triton = machine.mount(nearest_existing(triton)) if machine.gpus else None
    names = {"base": base, "writable": os.access(base, os.W_OK | os.X_OK), "mount": mount, "triton": _shown(triton)}
    yield from findings_where(__file__, "cache", folder=folder, ops=ops, triton_mount=of_triton, **names)


def _own(machine: MachineFacts) -> Path:
    """The folder that dsrun train compiles into."""
    home = machine.environ.get("HOME")
    environ = dict(machine.environ)
    if home and not environ.get("XDG_CACHE_HOME"):
        environ["XDG_CACHE_HOME"] = f"{home}/.cache"
    return extension_cache(environ)


def _shown(folder: Path) -> str:
    home = str(Path.home())
    return f"~{str(folder).removeprefix(home)}" if str(folder).startswith(f"{home}/") else str(folder)
