"""Weights of a trained small model that are as before."""

from __future__ import annotations

import pytest
import torch
from transformers import SwitchTransformersConfig, SwitchTransformersForConditionalGeneration

from dsrun.train.certify.look import losses as saved


@pytest.fixture
def keys(monkeypatch):
    """Of the findings where training left the weights whose names have these parts."""
    sizes = {"d_kv": 8, "d_ff": 16, "num_heads": 2, "num_layers": 2, "num_sparse_encoder_layers": 1}
    torch.manual_seed(0)
    config = SwitchTransformersConfig(
        vocab_size=128, d_model=16, **sizes, num_experts=4, num_decoder_layers=1, num_sparse_decoder_layers=0
    )
    monkeypatch.setattr(saved, "finding_of", lambda key, **_: key)
    model = SwitchTransformersForConditionalGeneration(config).eval()
    names = [name for name, _ in model.named_parameters()]
    monkeypatch.setattr(saved, "small_model", lambda *_: model)

    def found(*left):
        monkeypatch.setattr(saved, "_still", lambda *_: {name for name in names if any(part in name for part in left)})
        with torch.no_grad():
            return list(saved._untrained(None))

    return found


def test_an_expert_that_no_token_of_the_few_rows_reached_is_no_fault(keys):
    assert keys("expert_2.") == []


def test_most_experts_as_before_are_a_fault(keys):
    assert keys("expert_1.", "expert_2.", "expert_3.") == ["final.idle"]


def test_one_weight_of_experts_as_before_is_a_fault(keys):
    assert keys("wi.weight") == ["final.untrained"]
