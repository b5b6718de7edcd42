"""What tests of this room share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.slurm.stand_ins import Shell


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """Runs rendered scripts, with stand-ins for SLURM's programs."""
    found = Shell(tmp_path)
    yield found
    found.end()
