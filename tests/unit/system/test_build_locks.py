"""Locks of torch's builds: which of them nobody holds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dsrun.system import build_locks as build_locks_module
from dsrun.system.build_locks import STALE_S, LockState, abandoned, build_locks, build_root, remove_abandoned
from dsrun.system.host import mount_in

MOUNTS = "/dev/sda1 / ext4 rw 0 0\nserver:/home /home nfs4 rw 0 0\nnone /home/a\\040b tmpfs rw,noexec 0 0\n"


@pytest.mark.parametrize(
    ("environ", "root"),
    [
        ({"HOME": "/home/ada"}, "/home/ada/.cache/torch_extensions"),
        ({"HOME": "/home/ada", "XDG_CACHE_HOME": "/scratch"}, "/scratch/torch_extensions"),
        ({"HOME": "/home/ada", "TORCH_EXTENSIONS_DIR": "/tmp/own"}, "/tmp/own"),
    ],
)
def test_folder_of_builds_is_that_of_torch(environ: dict[str, str], root: str) -> None:
    program = "import torch.utils.cpp_extension as c; print(c.os.environ.get('TORCH_EXTENSIONS_DIR') or "
    program += "c.get_default_build_root())"
    said = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == root
    assert build_root(environ) == Path(root)


def test_lock_counts_as_abandoned_unless_it_may_be_held(tmp_path: Path) -> None:
    lock = tmp_path / "py311_cpu" / "cpu_adam" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    assert build_locks(tmp_path) == [lock]
    now = lock.stat().st_mtime
    here, elsewhere = "/dev/sda1 / ext4 rw 0 0\n", f"server:/ {tmp_path} nfs4 rw 0 0\n"

    def age(after: float, mounts: str = here) -> float | None:
        state = abandoned([lock], now + after, mounts).get(lock)
        return None if state is None else state.age_s(now + after)

    assert age(5) == pytest.approx(5)
    assert age(STALE_S - 1, elsewhere) is None
    assert age(STALE_S + 1, elsewhere) == pytest.approx(STALE_S + 1)
    # By another path, as a bind mount gives a file a second one.
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "lock").hardlink_to(lock)
    with (tmp_path / "second" / "lock").open():
        assert age(STALE_S) is None
    assert age(STALE_S) == pytest.approx(STALE_S)
    lock.unlink()
    assert age(5) is None


def test_other_users_and_containers_locks_are_left_for_half_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "op" / "lock"
    lock.parent.mkdir()
    lock.touch()
    now = lock.stat().st_mtime
    mounted = f"/dev/sda1 {tmp_path} ext4 rw 0 0\n"
    monkeypatch.setattr(build_locks_module, "_FIRST_NAMESPACE", Path("/proc/self/ns/pid").readlink())
    assert list(abandoned([lock], now, mounted)) == [lock]
    monkeypatch.setattr(build_locks_module, "_FIRST_NAMESPACE", Path("pid:[1]"))
    assert list(abandoned([lock], now, mounted)) == []
    assert list(abandoned([lock], now, "overlay / overlay rw 0 0\n")) == [lock]
    # Processes apart, and the files of the whole machine.
    assert list(abandoned([lock], now, "/dev/sda1 / ext4 rw 0 0\n")) == []
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert list(abandoned([lock], now, "overlay / overlay rw 0 0\n")) == []


def test_lock_of_a_build_that_began_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = tmp_path / "op" / "lock"
    lock.parent.mkdir()
    lock.touch()

    def found(locks: object, now: float, mounts: str) -> dict[Path, LockState]:
        state = abandoned([lock], now, mounts)
        lock.unlink()
        lock.touch()
        return state

    monkeypatch.setattr(build_locks_module, "abandoned", found)
    remove_abandoned({"TORCH_EXTENSIONS_DIR": str(tmp_path)}, print, set())
    assert lock.exists()
    monkeypatch.undo()
    remove_abandoned({"TORCH_EXTENSIONS_DIR": str(tmp_path)}, print, set())
    assert not lock.exists()


@pytest.mark.parametrize(
    ("path", "kind", "shared"),
    [("/srv/x", "ext4", False), ("/home/ada", "nfs4", True), ("/home/a b/c", "tmpfs", False)],
)
def test_file_system_of_a_path(path: str, kind: str, shared: bool) -> None:
    found = mount_in(MOUNTS, Path(path))
    assert found is not None
    assert (found.kind, found.shared) == (kind, shared)
