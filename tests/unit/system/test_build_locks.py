"""Locks of torch's builds: which of them nobody holds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dsrun.system.build_locks import STALE_S, abandoned_s, build_locks, build_root
from dsrun.system.mounts import mount_in

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


def test_lock_counts_as_abandoned_unless_it_is_held(tmp_path: Path) -> None:
    lock = tmp_path / "py311_cpu" / "cpu_adam" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    assert build_locks(tmp_path) == [lock]
    now = lock.stat().st_mtime
    assert abandoned_s(lock, now + 5, shared=False) == pytest.approx(5)
    assert abandoned_s(lock, now + STALE_S - 1, shared=True) is None
    assert abandoned_s(lock, now + STALE_S, shared=True) == pytest.approx(STALE_S)
    fd = os.open(lock, os.O_RDONLY)
    try:
        assert abandoned_s(lock, now + STALE_S, shared=False) is None
    finally:
        os.close(fd)
    lock.unlink()
    assert abandoned_s(lock, now, shared=False) is None


@pytest.mark.parametrize(
    ("path", "kind", "shared"),
    [("/srv/x", "ext4", False), ("/home/ada", "nfs4", True), ("/home/a b/c", "tmpfs", False)],
)
def test_file_system_of_a_path(path: str, kind: str, shared: bool) -> None:
    found = mount_in(MOUNTS, Path(path))
    assert found is not None
    assert (found.kind, found.shared) == (kind, shared)
