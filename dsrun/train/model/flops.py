"""The model FLOPs of a model as it is trained, read off its parameters."""

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from dsrun.errors import UsageError
from dsrun.hardware.gpu_facts import peak_bf16_tflops
from dsrun.recipe.precision import TrainingPrecision
from dsrun.train.model.quantization import elements
from dsrun.zero.memory.flops import AttentionShape, MatrixWeights, ModelFlops, model_flops
from dsrun.zero.memory.model.widths import architecture_of

# Keys and values of attention over the source, in transformers' encoder-decoders: T5's names, and BART's.
_CROSS = re.compile(
    r"(EncDecAttention\.[kv]|(encoder_attn|cross_?attn|crossattention)\.(self\.)?([kv]_proj|key|value))\."
)
_EXPERTS = re.compile(r"\.experts\.")


def flops_of(model: Any) -> ModelFlops | None:
    """Of a causal language model or an encoder-decoder, with or without adapters, sharded or quantised. None where the
    config does not say how many layers and heads it has."""
    try:
        architecture = architecture_of(
            model.config.to_dict() | {"is_encoder_decoder": model.config.is_encoder_decoder}, ()
        )
    except UsageError:
        return None
    decoder, encoder = architecture.decoder, architecture.encoder
    per_expert = decoder.experts_per_token / decoder.experts if decoder.experts else 1.0
    attention = [AttentionShape(side.layers, side.queries) for side in (decoder, encoder) if side]
    return model_flops(_matrices(model, per_expert), *attention)


def _matrices(model: Any, per_expert: float) -> Iterator[MatrixWeights]:
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    output = getattr(base.get_output_embeddings(), "weight", None)
    tables = {id(each.weight) for each in model.modules() if isinstance(each, nn.Embedding)}
    source = {id(each) for each in base.get_encoder().parameters()} if model.config.is_encoder_decoder else set()
    for name, parameter in model.named_parameters():
        is_table = id(parameter) in tables and parameter is not output  # a tied one is a matrix as well
        if is_table or len(getattr(parameter, "ds_shape", parameter.shape)) < 2:
            continue
        of_source = parameter is not output and (id(parameter) in source or bool(_CROSS.search(name)))
        share = per_expert if _EXPERTS.search(name) else 1.0
        yield MatrixWeights(elements(parameter) * share, of_source, parameter.requires_grad)


def peak_flops(precision: TrainingPrecision) -> float | None:
    """Dense peak of this GPU in FLOP/s at the training precision, where the table knows it."""
    tflops = peak_bf16_tflops(torch.cuda.get_device_name())
    return tflops * 1e12 if tflops and precision != "fp32" else None
