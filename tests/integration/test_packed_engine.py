"""Packed pairs on real engines."""

from __future__ import annotations

import json

import pytest

from tests.forkserver.ranks import Ranks


@pytest.mark.train
def test_packed_pairs_gradients_under_zero_3(tmp_path):
    """Parameters are gathered for a forward that calls the encoder by itself, in the first step, which is traced, and
    in later ones; positions that start again do not read the weights of their embedding."""
    Ranks(tmp_path / "logs", "tests.integration.packed_engine", [tmp_path / "out"], count=2).wait()
    for rank in range(2):
        found = json.loads((tmp_path / f"out-{rank}").read_text())
        assert set(found) == {"t5", "bart"}
        assert max(max(each) for each in found.values()) < 1e-5
