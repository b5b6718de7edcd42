"""Model FLOPs utilisation: the FLOPs that a model's mathematics needs, over what the hardware could have done.

The matrices of two shapes of models, from their configs alone; what they cost is in dsrun/zero/memory/flops.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dsrun.zero.memory.flops import AttentionShape, MatrixWeights, model_flops, work_of

Config = Mapping[str, Any]


def causal_flops(config: Config, lengths: Sequence[int]) -> float:
    """FLOPs, forward and backward, of documents of so many tokens each under a Llama-shaped config."""
    attention = AttentionShape(config["num_hidden_layers"], config["hidden_size"])
    return model_flops([MatrixWeights(llama_parameters(config))], attention).of(
        work_of((0, length) for length in lengths)
    )


def seq2seq_flops(config: Config, pairs: Sequence[tuple[int, int]]) -> float:
    """The same of pairs of source and target tokens under a T5-shaped config. The keys and values of cross attention
    are computed for each source token, everything else of the decoder for each target token."""
    encoder, decoder, cross = t5_parameters(config)
    layers, inner = config["num_layers"], config["num_heads"] * config["d_kv"]
    matrices = [MatrixWeights(encoder + cross, of_source=True), MatrixWeights(decoder)]
    decoders = config.get("num_decoder_layers") or layers
    return model_flops(matrices, AttentionShape(decoders, inner), AttentionShape(layers, inner)).of(work_of(pairs))


def llama_parameters(config: Config) -> int:
    """Weights of the matrices that every token is multiplied with, the output layer included."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    shared = (config.get("num_key_value_heads") or heads) / heads
    attention = 2 * hidden * hidden + int(2 * hidden * hidden * shared)
    layer = attention + 3 * hidden * config["intermediate_size"]
    return int(config["num_hidden_layers"] * layer + config["vocab_size"] * hidden)


def t5_parameters(config: Config) -> tuple[int, int, int]:
    """Weights of the encoder's matrices, of the decoder's with the output layer, and of the keys and values of cross
    attention. T5 1.0, whose feed-forward layers have two matrices."""
    width, inner = config["d_model"], config["num_heads"] * config["d_kv"]
    layers, decoders = config["num_layers"], config.get("num_decoder_layers") or config["num_layers"]
    attention, feed_forward = 4 * width * inner, 2 * width * config["d_ff"]
    encoder = layers * (attention + feed_forward)
    decoder = decoders * (attention + 2 * width * inner + feed_forward) + config["vocab_size"] * width
    return encoder, decoder, decoders * 2 * width * inner
