"""Models are counted on the meta device in processes that are forked, not started."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

import pytest

from tests.forkserver.client import HEAVY


@pytest.fixture(autouse=True)
def forked_counter(monkeypatch):
    def capture(argv: Sequence[str], *, seconds: float, changes: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, **changes}
        return HEAVY.run(argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)

    monkeypatch.setattr("dsrun.system.process.proc.capture", capture)
