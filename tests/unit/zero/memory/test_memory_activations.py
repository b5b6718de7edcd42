"""What the formulas say a forward pass keeps, against the tensors that autograd really saves."""

from __future__ import annotations

import json

import pytest

from dsrun.zero.memory.model.count import describe
from dsrun.zero.memory.rank.activations import TokenBatch, activations
from dsrun.zero.memory.rank.loss import LOSS_CHUNK

SAMPLES, SOURCE, LENGTH = 2, 48, 40
WITHIN = 0.03

LLAMA = {"vocab_size": 100, "hidden_size": 128, "intermediate_size": 300, "num_attention_heads": 8}
T5 = {
    "vocab_size": 100,
    "d_model": 128,
    "d_kv": 16,
    "d_ff": 300,
    "num_heads": 8,
    "dropout_rate": 0.0,
    "num_layers": 2,
}
CASES = [
    ("LlamaConfig", {**LLAMA, "num_key_value_heads": 2, "num_hidden_layers": 2}, ("bfloat16", "float32")),
    ("Qwen3Config", {**LLAMA, "num_key_value_heads": 2, "head_dim": 16, "num_hidden_layers": 2},
     ("bfloat16", "float32")),
    ("GPT2Config", {"vocab_size": 100, "n_embd": 128, "n_head": 8, "n_layer": 2, "resid_pdrop": 0.0,
                    "embd_pdrop": 0.0, "attn_pdrop": 0.0}, ("bfloat16", "float32")),
    ("GPTNeoXConfig", {**LLAMA, "num_hidden_layers": 2}, ("bfloat16", "float32")),
    # In bf16 the CPU has no fused attention for a bias that needs a gradient.
    ("T5Config", T5, ("float32",)),
    ("T5Config", {**T5, "feed_forward_proj": "gated-gelu"}, ("float32",)),
    ("BartConfig", {"vocab_size": 100, "d_model": 128, "encoder_ffn_dim": 512, "decoder_ffn_dim": 512,
                    "encoder_attention_heads": 8, "decoder_attention_heads": 8, "encoder_layers": 2,
                    "decoder_layers": 2, "dropout": 0.0}, ("bfloat16", "float32")),
]  # fmt: skip


def saved_bytes(model, batch) -> int:
    """Bytes of the distinct storages that the graph of a forward pass holds, parameters left out."""
    import torch

    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor):
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model(**batch)
    assert output.logits.requires_grad
    return sum(t.untyped_storage().nbytes() for address, t in kept.items() if address not in own)


def build(kind, settings, dtype):
    import torch
    import transformers

    config = getattr(transformers, kind)(**settings)
    config._attn_implementation = "sdpa"
    name = "AutoModelForSeq2SeqLM" if config.is_encoder_decoder else "AutoModelForCausalLM"
    model = getattr(transformers, name).from_config(config).to(getattr(torch, dtype)).train()
    return model, describe(json.loads(config.to_json_string()), from_scratch=True)


def padded_batch(seq2seq):
    import torch

    ids = torch.randint(3, 100, (SAMPLES, SOURCE if seq2seq else LENGTH))
    mask = torch.ones_like(ids)
    mask[0, -5:] = 0
    batch = {"input_ids": ids, "attention_mask": mask, "use_cache": False}
    return batch | ({"decoder_input_ids": torch.randint(3, 100, (SAMPLES, LENGTH))} if seq2seq else {})


@pytest.mark.parametrize(
    ("kind", "settings", "dtype"), [(kind, settings, dtype) for kind, settings, types in CASES for dtype in types],
    ids=lambda each: each if isinstance(each, str) else "",
)  # fmt: skip
def test_kept_activations_match_autograd(kind, settings, dtype):
    model, described = build(kind, settings, dtype)
    work = TokenBatch(
        micro_batch=SAMPLES,
        length=LENGTH,
        source_length=SOURCE,
        width=2 if dtype == "bfloat16" else 4,
        dropout=False,
    )
    assert activations(described, work).kept == pytest.approx(
        saved_bytes(model, padded_batch(described.seq2seq)), rel=WITHIN
    )


def llama(**changes):
    work = {"micro_batch": 2, "length": 256, "width": 2}
    return activations(
        describe({"model_type": "llama", "num_hidden_layers": 8, **LLAMA}), TokenBatch(**(work | changes))
    )


def test_activation_checkpointing_keeps_one_input_per_layer():
    whole, recomputed = llama(), llama(checkpointing=True)
    inputs = 8 * 2 * 256 * 128 * 2
    assert inputs < recomputed.kept < inputs + whole.kept / 8
    # The layer that is run again is there in whole, once.
    assert recomputed.working > whole.working


def test_activations_grow_with_batch_and_length():
    """Activations grow with the batch, and under eager attention with the square of the length."""
    assert llama(micro_batch=4).kept == pytest.approx(2 * llama(micro_batch=2).kept, rel=0.001)
    fused = llama(length=512, padded=False).kept / llama(padded=False).kept
    eager = llama(length=512, attention="eager").kept / llama(attention="eager").kept
    assert fused == pytest.approx(2, rel=0.001)
    assert eager > 2.5


def test_logits_and_two_fp32_copies_of_a_chunk_are_counted():
    """What the loss really holds: tests/unit/train/test_cross_entropy.py."""
    few, many = 2 * 256 * 100, 2 * 256 * 1000 * 100
    assert llama().logits == (2 + 8) * few
    assert llama(length=256_000).logits == 2 * many + 8 * LOSS_CHUNK
    assert llama(length=256_000, width=4).logits == 4 * many + 8 * LOSS_CHUNK


def test_fp32_outputs_and_router_losses_take_more_logits():
    """Under plain DDP accelerate copies them in fp32; router losses keep the gradient from overwriting them."""
    few = 2 * 256 * 100
    assert llama(autocast=True).logits == (2 + 4 + 8) * few
    experts = describe({"model_type": "mixtral", "num_hidden_layers": 2, **LLAMA, "num_key_value_heads": 8})
    assert activations(experts, TokenBatch(micro_batch=2, length=256)).logits == (2 + 2 + 8) * few


def test_frozen_norms_keep_fewer_activations():
    assert llama(adapters=8).kept < llama().kept
