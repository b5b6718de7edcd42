"""Models are counted on the meta device in processes that are forked, not started."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

import pytest

from dsrun.system.proc import Answer
from tests.forkserver.client import HEAVY


@pytest.fixture(autouse=True)
def forked_counter(monkeypatch):
    def ask(argv: Sequence[str], *, seconds: float, changes: Mapping[str, str]) -> Answer:
        env = {**os.environ, **changes}
        done = HEAVY.run(argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        return Answer(exit_code=done.returncode, stdout=done.stdout, stderr=done.stderr)

    monkeypatch.setattr("dsrun.zero.memory.model.count.ask", ask)
