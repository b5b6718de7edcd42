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
    LlamaForCausalLM,
    MixtralConfig,
    SwitchTransformersConfig,
    T5Config,
)

from dsrun.train.base.labels import IGNORED, shifts_labels, target_tokens
from dsrun.train.loss.model_loss import ModelLoss, kind_of_loss, own_loss_notice, summed_cross_entropy

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
    assert kind_of_loss(model) == "logits"
    assert not shifts_labels(model)


@pytest.mark.parametrize("config", [LLAMA, GPT2], ids=["llama", "gpt2"])
def test_causal_model_keeps_native_loss(config):
    """Causal models with the shared loss function keep it."""
    model = model_of(config)
    assert kind_of_loss(model) == "shared"
    assert shifts_labels(model)


@pytest.mark.parametrize("config", [LLAMA, GPT2], ids=["llama", "gpt2"])
def test_native_loss_divides_by_num_items_in_batch(config):
    """What the kind `shared` promises: the model really normalises by num_items_in_batch."""
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


MIXTRAL = MixtralConfig(
    vocab_size=11, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=2, num_local_experts=4, output_router_logits=True, router_aux_loss_coef=10.0,
)  # fmt: skip
SWITCH = SwitchTransformersConfig(
    **TINY, d_ff=8, d_kv=4, num_layers=2, num_heads=2, num_experts=2, decoder_start_token_id=0, dropout_rate=0.0,
    num_sparse_encoder_layers=1, num_sparse_decoder_layers=1,
)  # fmt: skip


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_router_loss_does_not_grow_with_micro_batches(smoothing):
    """Of four equal rows each router measures the same in every micro batch, so any cut gives the same loss."""
    torch.manual_seed(0)
    model = model_of(MIXTRAL).eval()
    ids = torch.tensor([[1, 2, 3, 4]]).repeat(4, 1)
    labels = ids.clone()
    labels[:, 0] = IGNORED
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
    loss = ModelLoss.of(model, smoothing)
    assert loss.kind == "routed"
    items = target_tokens(labels, shifted=loss.shifted)
    whole, outputs = loss(model, inputs, items)
    cut = sum(loss(model, {name: each[k : k + 1] for name, each in inputs.items()}, items)[0] for k in range(4))
    torch.testing.assert_close(cut, whole)
    plain = summed_cross_entropy(outputs.logits, labels, shifted=loss.shifted) / items
    assert whole > plain + 5, "the routers count"


class Offset(LlamaForCausalLM):
    """As code from the Hub: a forward that takes labels, and a loss that is not the cross entropy."""

    def forward(self, input_ids=None, attention_mask=None, labels=None):
        outputs = super().forward(input_ids=input_ids, attention_mask=attention_mask)
        if labels is not None:
            entropy = torch.nn.functional.cross_entropy(outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
            outputs.loss = entropy + 100
        return outputs


def test_unknown_loss_of_a_model_used_and_weighed_by_tokens():
    torch.manual_seed(0)
    model = Offset(LLAMA)
    loss = ModelLoss.of(model)
    assert loss.kind == "own"
    labels = torch.tensor([[1, 2, 3, 4], [5, 6, IGNORED, IGNORED]])
    ids = labels.clamp(min=0)
    parts = [
        loss(model, {"input_ids": ids[k : k + 1], "labels": labels[k : k + 1]}, torch.tensor(4))[0] for k in (0, 1)
    ]
    entropy = summed_cross_entropy(model(input_ids=ids).logits, labels, shifted=True) / 4
    torch.testing.assert_close(sum(parts), entropy + 100)


def test_filler_batch_of_own_loss_gives_zero_gradients():
    """The mean over no tokens is NaN, which would stay NaN whatever it is multiplied with."""
    model = Offset(LLAMA)
    filler = {"input_ids": torch.tensor([[1, 2, 3]]), "labels": torch.full((1, 3), IGNORED)}
    loss, _ = ModelLoss.of(model)(model, filler, torch.tensor(4))
    loss.backward()
    assert loss.item() == 0
    assert all(each.grad.abs().sum() == 0 for each in model.parameters())


def test_own_loss_reported():
    assert own_loss_notice(model_of(LLAMA), 0.1) is None
    notice = own_loss_notice(Offset(LLAMA), 0.1)
    assert notice.startswith("Offset computes a loss of its own, which is used")
    assert "--label-smoothing-factor has no effect" in notice
    assert "--label-smoothing-factor" not in own_loss_notice(Offset(LLAMA), 0.0)
    assert own_loss_notice(model_of(SWITCH), 0.0) is None
    assert "--label-smoothing-factor has no effect" in own_loss_notice(model_of(SWITCH), 0.1)
