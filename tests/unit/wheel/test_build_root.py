"""Where wheels are compiled."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from dsrun.wheel.compile.cached import build_root


@pytest.mark.parametrize(("name", "is_used"), [("plain", True), ("two words", False)])
def test_build_directory_avoids_tmpdir_with_spaces(tmp_path, monkeypatch, name, is_used):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / name))
    assert build_root() == (tmp_path / name if is_used else Path("/tmp"))
