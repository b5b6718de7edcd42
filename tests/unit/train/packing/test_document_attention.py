"""Attention within the documents of a row is that of each document alone."""

from __future__ import annotations

import itertools

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from dsrun.train.packing import documents as module
from dsrun.train.packing.documents import ATTENTION, lacks_kernel, refuse_lost_window, use_document_attention
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
    assert use_document_attention(model, None) is None
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
    assert use_document_attention(model, None)


def attended(query, key, value, ends, scale, window, enable_gqa):
    """What torch's kernel computes, [tokens, heads, width], one document after another; it needs heads of one number
    unless it is told otherwise."""
    assert query.shape[1] == key.shape[1] or enable_gqa, "Expect query and key/value to have the same number of heads"
    parts = []
    for start, stop in itertools.pairwise(ends.tolist()):
        length = stop - start
        seen = torch.ones(length, length, dtype=torch.bool)
        seen = seen.tril(window[1]) if window[1] >= 0 else seen
        seen = seen.triu(-window[0]) if window[0] >= 0 else seen
        document = (each[start:stop].transpose(0, 1) for each in (query, key, value))
        found = torch.nn.functional.scaled_dot_product_attention(
            *document, attn_mask=seen, scale=scale, enable_gqa=enable_gqa
        )
        parts.append(found.transpose(0, 1))
    return torch.cat(parts)


def of_torch_2_10(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, is_causal=False, return_aux=None):
    return attended(query, key, value, cu_seq_q, None, (-1, 0 if is_causal else -1), False)


def of_torch_2_11(
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None, window_size=(-1, -1)
):
    return attended(query, key, value, cu_seq_q, scale, window_size, False)


def of_torch_2_12(
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None, window_size=(-1, -1),
    enable_gqa=False,
):  # fmt: skip
    return attended(query, key, value, cu_seq_q, scale, window_size, enable_gqa)


KERNELS = [of_torch_2_10, of_torch_2_11, of_torch_2_12]


def use_kernel(monkeypatch, kernel):
    monkeypatch.setattr(module, "varlen_attn", kernel)
    monkeypatch.setattr(module, "KERNEL_ARGUMENTS", module.arguments_of(kernel))


@pytest.mark.parametrize("window", [None, WINDOW])
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernel_gets_what_its_version_of_torch_takes(monkeypatch, kernel, window):
    """Grouped heads, a scale of the model's own and a document longer than the window, with their gradients."""
    use_kernel(monkeypatch, kernel)
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, heads, sum(LENGTHS), 8, requires_grad=True) for heads in (4, 2, 2))
    ends = torch.tensor([0, *LENGTHS]).cumsum(0, dtype=torch.int32)
    layer = torch.nn.Module()
    layer.num_key_value_groups = 2
    given = {"max_length_q": max(LENGTHS), "sliding_window": window, "scaling": 0.2}
    if window and kernel is of_torch_2_10:
        with pytest.raises(ValueError, match=r"torch .* has no sliding window in its kernel \(2\.11 has\)"):
            module._by_kernel(layer, query, key, value, ends, **given)
        return
    found = module._by_kernel(layer, query, key, value, ends, **given)
    expected = ATTENTION._one_by_one(layer, query, key, value, ends, **given)
    assert torch.allclose(found, expected, atol=1e-6)
    gradients = [torch.autograd.grad(each.square().sum(), (query, key, value)) for each in (found, expected)]
    for one, other in zip(*gradients, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_newest_stand_in_has_the_arguments_of_the_real_kernel():
    assert module.arguments_of(of_torch_2_12) <= module.KERNEL_ARGUMENTS


@pytest.mark.parametrize(
    ("config", "dtype", "why"),
    [
        (AutoConfig.for_model("llama"), torch.bfloat16, None),
        (AutoConfig.for_model("llama"), torch.float32, "float32"),
        (AutoConfig.for_model("llama", attention_dropout=0.1), torch.bfloat16, "attention_dropout"),
        (AutoConfig.for_model("gpt2"), torch.bfloat16, "attn_pdrop"),
    ],
    ids=["16 bits", "32 bits", "dropout", "gpt2's default dropout"],
)
def test_kernel_takes_16_bits_without_dropout(config, dtype, why):
    """On a GPU all else would be a call a document, which is slower than a mask."""
    found = lacks_kernel(config, dtype)
    assert (found is None) if why is None else why in found


def test_torch_without_the_kernel_is_named(monkeypatch):
    monkeypatch.setattr(module, "KERNEL_ARGUMENTS", frozenset())
    assert torch.__version__ in lacks_kernel(AutoConfig.for_model("llama"), torch.bfloat16)
