"""Errors for a model that cannot be built as requested."""

from __future__ import annotations

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from dsrun.errors import UsageError
from dsrun.recipe.spec import TrainSpec
from dsrun.train.model import build, load_config


@pytest.fixture
def folder(tmp_path):
    config = LlamaConfig(vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    return str(tmp_path)


@pytest.mark.parametrize("from_scratch", [False, True])
def test_unknown_attn_implementation_rejected(folder, from_scratch):
    """An attention kernel that the model does not have is named."""
    spec = TrainSpec(model=folder, from_scratch=from_scratch, attn_implementation="nosuch")
    with pytest.raises(UsageError, match=r"^--attn-implementation nosuch: .*cannot use it.*leave it out"):
        build(spec, load_config(spec), "causal-lm")


def test_known_attn_implementation_used(folder):
    spec = TrainSpec(model=folder, from_scratch=True, attn_implementation="eager")
    assert build(spec, load_config(spec), "causal-lm").config._attn_implementation == "eager"
