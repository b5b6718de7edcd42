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


@pytest.mark.train
def test_ranks_agree_on_a_probe_that_fails_on_one_of_them(tmp_path):
    """None waits for another, all give the reason of the one that raised, and nothing stays gathered."""
    Ranks(tmp_path / "logs", "tests.integration.probe_ranks", [tmp_path / "out"], count=2).wait()
    one, other = (json.loads((tmp_path / f"out-{rank}").read_text()) for rank in range(2))
    assert one == other
    assert not any(each.pop("gathered") for each in one.values())
    methods = {name: each["method"] for name, each in one.items()}
    kept_apart = {"whole", "router", "experts", "lora on experts", "reads another's", "not called"}
    assert {name for name, method in methods.items() if method} == kept_apart
    assert "LlamaForCausalLM takes no packed documents (attention within each: not here" in one["all raise"]["reason"]
    assert "on one rank" in one["one raises"]["reason"]
    assert "ran out of GPU memory (CUDA out of memory)" in one["one is full"]["reason"]
