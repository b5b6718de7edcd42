"""An sdist that finds no room while it is unpacked is whole: fetching it again is no way to mend it."""

from __future__ import annotations

import errno
import io
import resource
import signal
import tarfile
from pathlib import Path

import pytest

from dsrun.wheel import sdist


def packed(folder: Path) -> Path:
    path = folder / "deepspeed-1.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, size in (("setup.py", 0), ("big", 1 << 20)):
            member = tarfile.TarInfo(f"deepspeed-1/{name}")
            member.size = size
            archive.addfile(member, io.BytesIO(bytes(size)))
    return path


def test_full_disk_while_unpacking_sdist(tmp_path: Path) -> None:
    """RLIMIT_FSIZE stands in for the full disk: the write really fails, with a sibling of ENOSPC."""
    path = packed(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(OSError, match="too large") as caught:
            sdist.unpack(path, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert caught.value.errno == errno.EFBIG
    assert not (tmp_path / "out").exists()
