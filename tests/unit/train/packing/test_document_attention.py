"""Attention within the documents of a row is that of each document alone."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from dsrun.train.packing.documents import ATTENTION, has_kernel, refuse_lost_window, use_document_attention
from dsrun.train.packing.probe import packed_inputs

WINDOW = 6
LENGTHS = (20, 3, 11)
SMALL = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": 0, "attn_implementation": "sdpa",
}  # fmt: skip


def small(kind, **options):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SMALL, **options))


def documents():
    torch.manual_seed(1)
    return [torch.randint(3, 97, (length,)) for length in LENGTHS]


def gradients(model, losses):
    model.zero_grad()
    sum(losses).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("llama", {}),
        ("mistral", {"sliding_window": WINDOW}),
        ("qwen3", {"sliding_window": WINDOW, "use_sliding_window": True, "max_window_layers": 1, "head_dim": 8}),
    ],
    ids=["full", "window", "window in one layer"],
)
def test_packed_logits_and_gradients_are_those_of_documents_alone(kind, options):
    """Also of a document that is longer than the window."""
    alone = small(kind, **options)
    logits = [alone(input_ids=each[None], use_cache=False).logits[0] for each in documents()]
    expected = gradients(alone, [each.square().mean(1).sum() for each in logits])

    model = small(kind, **options)
    assert use_document_attention(model, None)
    inputs = packed_inputs([documents()[:2], documents()[2:]], "documents", pad_id=0)
    packed = model(**inputs, use_cache=False).logits[0]
    refuse_lost_window(model)
    assert torch.allclose(packed, torch.cat(logits), atol=1e-5)
    found = gradients(model, [packed.square().mean(1).sum()])
    assert torch.allclose(found, expected, atol=1e-5 * float(expected.abs().max()))


def test_padded_batches_see_transformers_own_attention():
    """Those of an evaluation, in the same process."""
    model = small("llama")
    batch = {"input_ids": torch.arange(3, 23).reshape(2, 10), "attention_mask": torch.ones(2, 10, dtype=torch.int64)}
    batch["attention_mask"][1, 6:] = 0
    model.set_attn_implementation("eager")
    expected = model(**batch).logits
    model.set_attn_implementation("sdpa")
    use_document_attention(model, None)
    assert torch.allclose(model(**batch).logits, expected, atol=1e-5)


def test_layer_that_does_not_name_its_window_is_refused(monkeypatch):
    """No mask would bring the window to it."""
    model = small("mistral", sliding_window=WINDOW)
    use_document_attention(model, None)
    named = ATTENTION.__class__.__call__
    last = model.model.layers[-1].self_attn

    def forgetful(self, module, *tensors, **given):
        if module is last:
            given.pop("sliding_window")
        return named(self, module, *tensors, **given)

    monkeypatch.setattr(ATTENTION.__class__, "__call__", forgetful)
    model(**packed_inputs([documents()], "documents", pad_id=0), use_cache=False)
    with pytest.raises(ValueError, match="sliding window"):
        refuse_lost_window(model)


def test_dropout_reaches_each_document():
    model = small("llama", attention_dropout=0.5).train()
    use_document_attention(model, None)
    inputs = packed_inputs([documents()], "documents", pad_id=0)
    one, other = (model(**inputs, use_cache=False).logits for _ in range(2))
    assert not torch.allclose(one, other, atol=1e-3)


def test_cross_attention_with_borders_is_refused():
    query, key = torch.zeros(1, 2, 4, 8), torch.zeros(1, 2, 6, 8)
    with pytest.raises(ValueError, match="own document"):
        ATTENTION(torch.nn.Module(), query, key, key, cu_seq_lens_q=torch.tensor([0, 4]))


def test_eager_models_keep_their_attention():
    model = small("llama")
    model.set_attn_implementation("eager")
    assert not use_document_attention(model, None)


@pytest.mark.parametrize(
    ("config", "dtype", "found"),
    [
        (AutoConfig.for_model("llama"), torch.bfloat16, True),
        (AutoConfig.for_model("llama"), torch.float32, False),
        (AutoConfig.for_model("llama", attention_dropout=0.1), torch.bfloat16, False),
        (AutoConfig.for_model("gpt2"), torch.bfloat16, False),
    ],
    ids=["16 bits", "32 bits", "dropout", "gpt2's default dropout"],
)
def test_kernel_takes_16_bits_without_dropout(config, dtype, found):
    """On a GPU all else would be a call a document, which is slower than a mask."""
    assert has_kernel(config, dtype) == found
