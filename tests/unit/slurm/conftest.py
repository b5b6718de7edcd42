"""What tests of this room share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.slurm.stand_ins import Shell


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Runs rendered scripts, with stand-ins for SLURM's programs."""
    return Shell(tmp_path)
