"""What is found out about a model before its first step."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    BartConfig,
    BertConfig,
    BloomConfig,
    GPT2Config,
    LlamaConfig,
    MambaConfig,
    MarianConfig,
    MarianMTModel,
    MixtralConfig,
    WhisperConfig,
    XLNetConfig,
)

from dsrun.errors import UsageError
from dsrun.train.data.collate import PaddingCollator
from dsrun.train.loss.model_loss import ModelLoss
from dsrun.train.loss.probe import check_causality, is_conditional, parameters_without_gradient
from dsrun.train.model.load import decide_task

HIDDEN = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
SEQ2SEQ = {
    "vocab_size": 64, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": 64,
    "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0, "forced_eos_token_id": 1,
}  # fmt: skip
BERT = BertConfig(**HIDDEN)


def trainer_of(model):
    return SimpleNamespace(
        model=model,
        model_wrapped=model,
        loss_of_model=ModelLoss.of(model),
        args=SimpleNamespace(device=torch.device("cpu")),
        compute_loss_context_manager=nullcontext,
        data_collator=PaddingCollator(pad_id=0, seq2seq=model.config.is_encoder_decoder, model=model),
        _prepare_inputs=dict,
    )


def begin(config):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).train()
    check_causality(trainer_of(model))
    assert model.training, "the mode of the model is as it was"


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**HIDDEN),
        GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=2),
        BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=2),
        MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2),
        MixtralConfig(**HIDDEN, num_key_value_heads=2),
        BertConfig(**HIDDEN, is_decoder=True),
    ],
    ids=lambda config: config.model_type,
)
def test_causal_model_passes(config):
    begin(config)


@pytest.mark.parametrize(
    "config",
    [BERT, XLNetConfig(vocab_size=64, d_model=32, n_layer=2, n_head=2, d_inner=32)],
    ids=lambda config: config.model_type,
)
def test_model_that_sees_later_tokens_refused(config):
    """Untrained, as its attention is weakest then."""
    with pytest.raises(UsageError, match="sees the tokens that it is to predict"):
        begin(config)


def test_random_numbers_of_training_unchanged_by_check():
    model = AutoModelForCausalLM.from_config(LlamaConfig(**HIDDEN, attention_dropout=0.5))
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    check_causality(trainer_of(model))
    assert torch.equal(torch.rand(3), expected)


def test_bert_refused_before_it_is_loaded():
    with pytest.raises(UsageError, match=r"^some/bert is a bert model, which reads text in both directions"):
        decide_task(BERT, "auto", "some/bert")
    assert decide_task(BertConfig(**HIDDEN, is_decoder=True), "auto", "some/bert") == "causal-lm"


def test_speech_model_refused_before_it_is_loaded():
    """Whisper is an encoder-decoder with a causal LM head, and neither of what is trained here."""
    with pytest.raises(UsageError, match="is a whisper model, which is neither"):
        decide_task(WhisperConfig(), "auto", "some/whisper")


def test_parameters_without_gradient(tmp_path):
    """Loaded, Marian's computed positions are parameters like others, which never get a gradient."""
    MarianMTModel(MarianConfig(**SEQ2SEQ)).save_pretrained(tmp_path)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert set(parameters_without_gradient(trainer_of(model))) == {
        "model.encoder.embed_positions.weight",
        "model.decoder.embed_positions.weight",
    }
    assert all(each.grad is None for each in model.parameters())
    assert parameters_without_gradient(trainer_of(AutoModelForSeq2SeqLM.from_config(BartConfig(**SEQ2SEQ)))) == []


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LlamaConfig(**HIDDEN), False),
        (MixtralConfig(**HIDDEN), True),
        (BartConfig(**SEQ2SEQ), False),
        (BartConfig(**SEQ2SEQ, decoder_layerdrop=0.1), True),
    ],
    ids=["dense", "experts", "no LayerDrop", "LayerDrop"],
)
def test_models_that_leave_out_parts_of_themselves(config, expected):
    assert is_conditional(config) is expected
