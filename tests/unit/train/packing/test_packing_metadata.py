"""What follows from how documents lie in rows is made once for a micro batch: not in each layer, nor again when
activations are recomputed."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from dsrun.train.packing import encoder_decoder
from dsrun.train.packing.documents import ATTENTION, use_document_attention
from dsrun.train.packing.encoder_decoder import install, pair_inputs
from dsrun.train.packing.probe import packed_inputs

LENGTHS = (20, 3, 11)
WINDOW = 6
CAUSAL = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
T5 = {"vocab_size": 97, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_heads": 2, "dropout_rate": 0.0, "pad_token_id": 0}
BART = {
    "vocab_size": 97, "d_model": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16, "max_position_embeddings": 64, "dropout": 0.0, "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0, "pad_token_id": 0,
}  # fmt: skip
KINDS = {
    "llama": (CAUSAL, ("num_hidden_layers",)),
    "mistral": ({**CAUSAL, "sliding_window": WINDOW}, ("num_hidden_layers",)),
    "t5": (T5, ("num_layers", "num_decoder_layers")),
    "bart": (BART, ("encoder_layers", "decoder_layers")),
}
# What makes masks and positions; `_local_scalar_dense` is a wait for the GPU, as is each read by the host.
MADE = ("where", "tril", "triu", "masked_fill", "eq", "ne", "bitwise_and", "bitwise_or", "cumsum", "diff", "embedding",
        "_local_scalar_dense", "is_nonzero", "nonzero", "item")  # fmt: skip


class Made(TorchDispatchMode):
    """Counts the operations that make metadata."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__.rstrip("_")
        if name in MADE:
            self.counts[name] += 1
        return function(*args, **kwargs or {})


def batch():
    torch.manual_seed(1)
    return [torch.randint(3, 97, (length,)) for length in LENGTHS]


def packed(kind, layers, recompute):
    """A model, and a micro batch as it is given."""
    torch.manual_seed(0)
    options, depths = KINDS[kind]
    config = AutoConfig.for_model(kind, **options, **dict.fromkeys(depths, layers))
    causal = not config.is_encoder_decoder
    config.decoder_start_token_id = 0
    made = AutoModelForCausalLM if causal else AutoModelForSeq2SeqLM
    model = made.from_config(config, attn_implementation="sdpa").train()
    if recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if causal:
        assert use_document_attention(model, None) is None
        return model, packed_inputs([batch()], "documents", pad_id=0)
    install(model)
    rows = [[{"input_ids": each, "labels": each} for each in part] for part in (batch(), batch()[:2])]
    return model, {k: v for k, v in pair_inputs(rows, 0, lambda labels: labels.clamp(min=0)).items() if k != "labels"}


def counted(kind, layers, recompute, monkeypatch):
    """Of a forward and a backward pass: operations, host reads, and the storages of the masks that attention gets."""
    model, inputs = packed(kind, layers, recompute)
    reads, masks = [], {}
    read, attend = torch.Tensor.tolist, torch.nn.functional.scaled_dot_product_attention

    def attended(*tensors, attn_mask=None, **options):
        if attn_mask is not None:
            # A mask of booleans becomes numbers in each layer. It is kept, or the next could lie in its place.
            assert attn_mask.dtype != torch.bool
            masks[attn_mask.untyped_storage().data_ptr()] = attn_mask
        return attend(*tensors, attn_mask=attn_mask, **options)

    with monkeypatch.context() as patch, Made() as made:
        patch.setattr(torch.Tensor, "tolist", lambda self: reads.append(1) or read(self))
        patch.setattr(torch.nn.functional, "scaled_dot_product_attention", attended)
        model(**inputs, use_cache=False).logits.square().mean().backward()
    return made.counts, len(reads), len(masks)


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("kind", KINDS)
def test_metadata_is_made_once_however_many_layers_there_are(kind, recompute, monkeypatch):
    counts, reads, masks = counted(kind, 2, recompute, monkeypatch)
    assert counted(kind, 5, recompute, monkeypatch) == (counts, reads, masks)
    assert reads == (kind in ("llama", "mistral"))
    # The first layers of a T5 make theirs, and make them again when they are recomputed, but not that of the encoder's
    # states.
    assert masks == {"llama": 0, "mistral": 1, "t5": 3 + 2 * recompute, "bart": 3}[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_loss_is_the_same_to_the_last_bit_as_with_metadata_of_each_layer(kind, monkeypatch):
    model, inputs = packed(kind, 3, False)
    once = model(**inputs).logits
    monkeypatch.setattr(encoder_decoder, "_BIASED", {"no attention has this"})
    call = type(ATTENTION).__call__

    def forgetful(self, *args, **given):
        self._ends = None
        return call(self, *args, **given)

    monkeypatch.setattr(type(ATTENTION), "__call__", forgetful)
    model, inputs = packed(kind, 3, False)
    assert torch.equal(once, model(**inputs).logits)


def test_other_borders_are_read_anew():
    """Those of the next micro batch, and of two that are under way by turns."""
    model, inputs = packed("mistral", 2, False)
    other = packed_inputs([batch()[::-1]], "documents", pad_id=0)
    first = model(**inputs).logits
    expected = packed("mistral", 2, False)[0](**other).logits
    assert torch.equal(model(**other).logits, expected)
    assert torch.equal(model(**inputs).logits, first)
