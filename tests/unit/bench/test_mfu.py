"""bench/mfu.py against models of transformers, whose parameters torch counts."""

from __future__ import annotations

import pytest

from bench.memory_cases import LLAMA_1B, LLAMA_8B, T5_LARGE
from bench.mfu import causal_flops, llama_parameters, seq2seq_flops, t5_parameters
from dsrun.zero.memory.model.count import describe

# Scales of norms and T5's position biases, which multiply nothing.
SMALL = 1e-3


def parameters(config):
    return describe(config, from_scratch=True).parameters


def test_matrices_are_the_parameters_but_input_embeddings():
    tied = llama_parameters(LLAMA_1B)
    assert tied == pytest.approx(parameters(LLAMA_1B), rel=SMALL)
    untied = llama_parameters(LLAMA_8B) + LLAMA_8B["vocab_size"] * LLAMA_8B["hidden_size"]
    assert untied == pytest.approx(parameters(LLAMA_8B), rel=SMALL)
    assert sum(t5_parameters(T5_LARGE)) == pytest.approx(parameters(T5_LARGE), rel=SMALL)


def test_palm_formula_for_one_length():
    """6·N + 12·L·H·Q·T a token, as in appendix B of the paper."""
    per_token = 6 * llama_parameters(LLAMA_1B) + 12 * 16 * 32 * 64 * 4096
    assert causal_flops(LLAMA_1B, [4096]) == 4096 * per_token
    assert causal_flops(LLAMA_1B, [10, 20]) == causal_flops(LLAMA_1B, [10]) + causal_flops(LLAMA_1B, [20])


def test_source_tokens_do_not_pass_through_the_decoder():
    encoder, decoder, cross = t5_parameters(T5_LARGE)
    inner = 12 * 16 * 64 * 24
    assert seq2seq_flops(T5_LARGE, [(7, 0)]) == 6 * 7 * (encoder + cross) + inner * 49
    assert seq2seq_flops(T5_LARGE, [(0, 5)]) == 6 * 5 * decoder + inner * 25
