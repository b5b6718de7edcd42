"""The loss is the sum over target tokens of the global batch, whatever it is cut into."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    BartConfig,
    GPT2Config,
    LlamaConfig,
    T5Config,
)

from dsrun.train.loop.batches import IGNORED
from dsrun.train.loop.evaluation import loss_is_native, shifts_labels, summed_cross_entropy, target_tokens

TINY = {"vocab_size": 11, "d_model": 8}
T5 = T5Config(**TINY, d_ff=8, d_kv=4, num_layers=1, num_heads=2, decoder_start_token_id=0)
BART = BartConfig(
    **TINY, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=8, decoder_ffn_dim=8, encoder_attention_heads=2,
    decoder_attention_heads=2, max_position_embeddings=16,
)  # fmt: skip
LLAMA = LlamaConfig(vocab_size=11, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
GPT2 = GPT2Config(vocab_size=11, n_embd=8, n_layer=1, n_head=2, n_positions=16)


def model_of(config):
    loader = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    return loader.from_config(config)


@pytest.mark.parametrize("config", [T5, BART], ids=["t5", "bart"])
def test_encoder_decoder_loss_from_logits(config):
    model = model_of(config)
    assert not loss_is_native(model)
    assert not shifts_labels(model)


@pytest.mark.parametrize("config", [LLAMA, GPT2], ids=["llama", "gpt2"])
def test_causal_model_keeps_native_loss(config):
    """Causal models with the shared loss function keep it."""
    model = model_of(config)
    assert loss_is_native(model)
    assert shifts_labels(model)


@pytest.mark.parametrize("config", [LLAMA, GPT2], ids=["llama", "gpt2"])
def test_native_loss_divides_by_num_items_in_batch(config):
    """What `loss_is_native` promises: the model really normalises by num_items_in_batch."""
    model = model_of(config).eval()
    ids = torch.tensor([[1, 2, 3, 4]])
    one = model(input_ids=ids, labels=ids, num_items_in_batch=torch.tensor(1)).loss
    seven = model(input_ids=ids, labels=ids, num_items_in_batch=torch.tensor(7)).loss
    torch.testing.assert_close(one, 7 * seven)
    own = summed_cross_entropy(model(input_ids=ids).logits, ids, shifted=True)
    torch.testing.assert_close(one, own)


def test_target_tokens_count_only_predicted_ones():
    labels = torch.tensor([[5, 6, IGNORED], [IGNORED, 7, 8]])
    assert target_tokens(labels, shifted=False) == 4
    assert target_tokens(labels, shifted=True) == 3


@pytest.mark.parametrize("shifted", [False, True])
def test_summed_loss_independent_of_padding_and_split(shifted):
    torch.manual_seed(0)
    logits, labels = torch.randn(4, 5, 11), torch.randint(0, 11, (4, 5))
    labels[1, 3:] = IGNORED
    whole = summed_cross_entropy(logits, labels, shifted=shifted)
    parts = sum(summed_cross_entropy(logits[i : i + 1], labels[i : i + 1], shifted=shifted) for i in range(4))
    torch.testing.assert_close(whole, parts)
    wider = torch.cat([logits, torch.randn(4, 2, 11)], dim=1)
    padded = torch.nn.functional.pad(labels, (0, 2), value=IGNORED)
    torch.testing.assert_close(whole, summed_cross_entropy(wider, padded, shifted=shifted))


def test_filler_batch_gives_zero_loss_and_gradients():
    logits = torch.randn(2, 3, 11, requires_grad=True)
    loss = summed_cross_entropy(logits, torch.full((2, 3), IGNORED), shifted=False)
    loss.backward()
    assert loss.item() == 0
    assert logits.grad.abs().sum() == 0
