"""Processes that no signal can end: in a frozen cgroup, which as root this machine may have."""

from __future__ import annotations

import errno
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

# Of the first version: a process that the second one's freezer holds dies of SIGKILL.
_FREEZER = Path("/sys/fs/cgroup/freezer")
_EXIT_SECONDS = 30.0


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Hold `pid` in uninterruptible sleep; skips the test where that cannot be had."""
    if not (_FREEZER / "cgroup.procs").exists() or not os.access(_FREEZER, os.W_OK):
        pytest.skip("no freezer of cgroup v1 to write to")
    group = _FREEZER / f"dsrun-test-{uuid.uuid4().hex}"
    group.mkdir()
    try:
        (group / "cgroup.procs").write_text(str(pid))
        (group / "freezer.state").write_text("FROZEN")
        yield
    finally:
        (group / "freezer.state").write_text("THAWED")
        with suppress(OSError):  # it has died meanwhile
            (_FREEZER / "cgroup.procs").write_text(str(pid))
        _remove(group)


def _remove(group: Path) -> None:
    """Remove the cgroup: its last process may have been killed and still be on its way out."""
    deadline = time.monotonic() + _EXIT_SECONDS
    while True:
        try:
            return group.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
