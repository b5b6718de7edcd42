"""Passes leave nothing for the next one, and give all experts gradients."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    BigBirdPegasusConfig,
    BigBirdPegasusForConditionalGeneration,
    NllbMoeConfig,
    NllbMoeForConditionalGeneration,
    SwitchTransformersConfig,
    SwitchTransformersForConditionalGeneration,
)

from dsrun.train.model.zero3 import forget_batches, keep_whole

SIZES = {
    "vocab_size": 64,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
}


def switch():
    sizes = {"d_kv": 8, "d_ff": 16, "num_heads": 2, "num_layers": 2, "num_sparse_encoder_layers": 1}
    config = SwitchTransformersConfig(vocab_size=64, d_model=16, **sizes, num_experts=4, router_jitter_noise=0.0)
    torch.manual_seed(0)
    return SwitchTransformersForConditionalGeneration(config).eval()


def backward(model, length=2):
    ids = torch.arange(2, 2 + length)[None]
    loss = model(input_ids=ids, decoder_input_ids=ids)["logits"].pow(2).sum()
    loss.backward()
    return loss.detach()


def experts(model):
    return {name: each.grad for name, each in model.named_parameters() if ".experts." in name}


def test_experts_without_a_token_have_gradients_of_zero_and_the_others_theirs():
    model, plain = switch(), switch()
    keep_whole(model, sharded=False)
    assert torch.equal(backward(model), backward(plain))
    expected, found = experts(plain), experts(model)
    assert any(each is None for each in expected.values())
    for name, each in expected.items():
        assert torch.equal(found[name], torch.zeros_like(found[name]) if each is None else each)


def test_gradients_of_experts_come_in_one_order_whichever_are_called():
    orders = []
    for first in (2, 9, 30):
        model, order = switch(), []
        keep_whole(model, sharded=False)
        for name, each in model.named_parameters():
            each.register_post_accumulate_grad_hook(lambda _, name=name, order=order: order.append(name))
        ids = torch.arange(first, first + 3)[None]
        model(input_ids=ids, decoder_input_ids=ids)["logits"].sum().backward()
        orders.append(order)
    assert orders[0] == orders[1] == orders[2]


def test_frozen_experts_and_evaluation_are_as_before():
    model = switch().requires_grad_(False)
    keep_whole(model, sharded=False)
    ids = torch.arange(2, 6)[None]
    expected = switch()(input_ids=ids, decoder_input_ids=ids)["logits"]
    assert torch.equal(model(input_ids=ids, decoder_input_ids=ids)["logits"], expected)


@pytest.fixture
def bigbird():
    config = BigBirdPegasusConfig(
        **SIZES, block_size=2, num_random_blocks=1, max_position_embeddings=64, attention_type="block_sparse"
    )
    model = BigBirdPegasusForConditionalGeneration(config).eval()
    forget_batches(model)
    return model


def test_short_batch_draws_nothing_and_leaves_sparse_attention(bigbird):
    long, short = torch.arange(2, 42)[None], torch.arange(2, 6)[None]
    with torch.no_grad():
        expected = bigbird(input_ids=long, decoder_input_ids=short)["logits"]
        torch.manual_seed(1)
        before = torch.get_rng_state()
        first = bigbird(input_ids=short, decoder_input_ids=short)["logits"]
        assert torch.equal(torch.get_rng_state(), before)
        assert torch.isfinite(first).all()
        assert torch.equal(bigbird(input_ids=long, decoder_input_ids=short)["logits"], expected)
    assert bigbird.get_encoder().attention_type == "block_sparse"
    assert all(each.device.type == "cpu" for each in bigbird.parameters())


def test_evaluation_does_not_change_how_many_tokens_an_expert_takes():
    sparse = {"encoder_sparse_step": 1, "decoder_sparse_step": 1, "num_experts": 2, "expert_capacity": 64}
    dropped = ("dropout", "attention_dropout", "moe_token_dropout", "encoder_layerdrop", "decoder_layerdrop")
    config = NllbMoeConfig(**SIZES, **sparse, **dict.fromkeys(dropped, 0.0))
    model = NllbMoeForConditionalGeneration(config)
    forget_batches(model)
    ids, few = torch.arange(2, 34)[None], torch.arange(2, 5)[None]
    with torch.no_grad():
        expected = model.train()(input_ids=ids, decoder_input_ids=ids)["logits"]
        model.eval()(input_ids=few, decoder_input_ids=few)
        assert torch.equal(model.train()(input_ids=ids, decoder_input_ids=ids)["logits"], expected)
