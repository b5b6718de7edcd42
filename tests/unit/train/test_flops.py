"""Model FLOPs read off a model are those of its config's shapes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, BartConfig

from bench.ladder.data import LLAMA, T5
from bench.mfu import causal_flops, llama_parameters, seq2seq_flops
from dsrun.train.loop.recording import StepRecorder, flops_of
from dsrun.zero.memory.flops import work_of

# Scales of norms and T5's position biases, which multiply nothing, are no matrices.
SMALL = 1e-3
PAIRS = [(7, 30), (200, 3)]


def built(config):
    kinds = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    with torch.device("meta"):
        return kinds.from_config(config)


def test_causal_model_costs_what_the_bench_counts():
    lengths = [10, 2000]
    found = flops_of(built(AutoConfig.for_model(**LLAMA))).of(work_of((0, each) for each in lengths))
    assert found == pytest.approx(causal_flops(LLAMA, lengths), rel=SMALL)


def test_encoder_decoder_costs_what_the_bench_counts():
    """Not 6·N for each token of either side: about half of that."""
    found = flops_of(built(AutoConfig.for_model(**T5))).of(work_of(PAIRS))
    assert found == pytest.approx(seq2seq_flops(T5, PAIRS), rel=SMALL)


def test_keys_and_values_of_bart_are_computed_for_its_source():
    config = BartConfig(d_model=32, encoder_layers=2, decoder_layers=3, encoder_ffn_dim=64, decoder_ffn_dim=64)
    factors = flops_of(built(config)).factors
    assert factors[0] == 6 * (2 * (4 * 32 * 32 + 2 * 32 * 64) + 3 * 2 * 32 * 32)
    assert factors[1] == 6 * (3 * (6 * 32 * 32 + 2 * 32 * 64) + config.vocab_size * 32)
    assert factors[2:] == (12 * 2 * 32, 12 * 3 * 32, 12 * 3 * 32)


def test_frozen_weights_have_no_gradient_of_their_own():
    """LoRA costs about two thirds of what training all of it does."""
    model = get_peft_model(built(AutoConfig.for_model(**LLAMA)), LoraConfig(r=2, target_modules="all-linear"))
    adapters = sum(each.numel() for name, each in model.named_parameters() if "lora_" in name)
    assert flops_of(model).factors[1] == pytest.approx(4 * llama_parameters(LLAMA) + 6 * adapters, rel=SMALL)


def test_experts_count_as_often_as_a_token_is_sent_to_one():
    sizes = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 4, "vocab_size": 64, "num_local_experts": 8, "num_experts_per_tok": 2,
    }  # fmt: skip
    found = flops_of(built(AutoConfig.for_model("mixtral", **sizes))).factors[1]
    assert found == 6 * (2 * (4 * 32 * 32 + 8 * 32 + 2 * 3 * 32 * 48) + 64 * 32)


def test_mfu_is_that_of_the_work_since_the_last_line():
    """Over the peak of all GPUs."""
    flops = flops_of(built(AutoConfig.for_model(**LLAMA)))
    trainer = SimpleNamespace(work_done=[0, 300, 0, 9000, 0], split=SimpleNamespace(world_size=2))
    recorder = StepRecorder(trainer, None, None, flops=flops, peak_flops=1e12)
    assert recorder._mfu(2.0) == pytest.approx(flops.of([0, 300, 0, 9000, 0]) / (2.0 * 2e12))
    trainer.work_done = [0, 310, 0, 9100, 0]
    assert recorder._mfu(1.0) == pytest.approx(flops.of([0, 10, 0, 100, 0]) / 2e12)
    assert StepRecorder(trainer, None, None, flops=flops)._mfu(1.0) is None
