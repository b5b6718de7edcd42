"""Weights drawn from scratch: by a seed for each module, and once."""

from __future__ import annotations

import pickle
from collections import Counter

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    LlamaConfig,
    OpenAIGPTConfig,
    SwitchTransformersConfig,
    T5Config,
    initialization,
)

from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.train.model.build_model import build
from dsrun.train.model.initial_weights import leave_undrawn, undrawn

LLAMA = LlamaConfig(vocab_size=16, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
SPEC = TrainSpec(model_type="llama", from_scratch=True)
CONFIGS = [
    LLAMA,
    OpenAIGPTConfig(vocab_size=16, n_embd=16, n_layer=1, n_head=2, n_positions=8),
    T5Config(vocab_size=16, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2),
    SwitchTransformersConfig(vocab_size=16, d_model=16, d_kv=8, d_ff=16, num_layers=2, num_heads=2, num_experts=2),
]


def drawn(config, seed=0):
    return build(SPEC, config, "seq2seq" if config.is_encoder_decoder else "causal-lm", seed=seed).state_dict()


def test_each_weight_drawn_once(monkeypatch):
    """Not by its constructor, and not by transformers as it builds the model."""
    counts: Counter[int] = Counter()

    def counting(function):
        def draw(tensor, *given, **named):
            counts[tensor.numel()] += 1
            return function(tensor, *given, **named)

        return draw

    for name in ("normal_", "kaiming_uniform_", "uniform_"):
        monkeypatch.setitem(initialization.TORCH_INIT_FUNCTIONS, name, counting(getattr(torch.nn.init, name)))
        monkeypatch.setattr(torch.nn.init, name, counting(getattr(torch.nn.init, name)))
    weights = drawn(LLAMA)
    assert sum(counts.values()) == sum(value.ndim == 2 for value in weights.values())


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.model_type)
def test_every_weight_depends_on_the_seed_alone(config):
    """Whatever was drawn before, and though memory holds what it held."""
    first = drawn(config)
    junk = [torch.full((32, 32), torch.nan) for _ in range(50)]
    torch.rand(3)
    del junk
    again, other = drawn(config), drawn(config, seed=1)
    assert all(torch.equal(first[name], again[name]) for name in first)
    matrices = [name for name, value in first.items() if value.ndim > 1 and value.is_floating_point()]
    # OpenAI GPT keeps its mask among its weights.
    assert all(name.endswith("attn.bias") or not torch.equal(first[name], other[name]) for name in matrices)


def test_rounding_a_draw_is_the_draw_in_fewer_bits():
    """ZeRO-3 may hold weights in bf16 as they are drawn, and ZeRO-2 in fp32."""
    whole = drawn(LLAMA)
    half = build(TrainSpec(model_type="llama", from_scratch=True, weights_dtype="bfloat16"), LLAMA, "causal-lm")
    assert all(torch.equal(value, whole[name].bfloat16()) for name, value in half.state_dict().items())


def test_buffers_of_a_model_for_other_weights_are_computed():
    with undrawn():
        model = AutoModelForCausalLM.from_config(LLAMA)
    leave_undrawn(model)
    whole = AutoModelForCausalLM.from_config(LLAMA)
    assert torch.equal(model.model.rotary_emb.inv_freq, whole.model.rotary_emb.inv_freq)


def test_drawn_model_can_go_to_another_process():
    model = build(SPEC, LLAMA, "causal-lm")
    assert pickle.loads(pickle.dumps(model)).config.model_type == "llama"


SMALL = {
    "vocab_size": 16, "hidden_size": 16, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 16, "moe_intermediate_size": 8,
    "moe_num_experts": 4, "num_local_experts": 4, "num_experts": 4, "pad_token_id": 0,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["pegasus", "marian", "ernie4_5_moe", "afmoe", "laguna"])
def test_what_its_class_freezes_stays_frozen_when_loaded(kind, tmp_path):
    """Else weight decay shrinks it where ZeRO-3 does not shard, and no checkpoint fits another stage."""
    known = AutoConfig.for_model(kind)
    config = type(known)(**{name: value for name, value in SMALL.items() if name in known.to_dict()})
    auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    made = auto.from_config(config)
    made.save_pretrained(tmp_path)
    frozen = {name for name, each in made.named_parameters() if not each.requires_grad}
    assert frozen
    task = "seq2seq" if config.is_encoder_decoder else "causal-lm"
    loaded = build(TrainSpec(model=str(tmp_path)), config, task)
    assert {name for name, each in loaded.named_parameters() if not each.requires_grad} == frozen
