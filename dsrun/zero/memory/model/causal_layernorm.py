"""Decoder-only families with LayerNorm: the exact parameter tensors transformers 5.23 builds from a config.json, in its
order."""

from __future__ import annotations

from dsrun.models.families import family_of
from dsrun.zero.memory.model.architecture import Architecture, Block, Stack, Weight
from dsrun.zero.memory.model.seq2seq import head, linear, norm, single, table
from dsrun.zero.memory.model.settings import Settings


def _plain_stack(layers: int, heads: int, width: int, ffn: int) -> Stack:
    return Stack(layers=layers, heads=heads, queries=width, keys=width, ffn=ffn, gated=False, norms=2)


def gpt2(config: Settings, *, from_scratch: bool) -> Architecture:
    """GPT-2 (Radford et al. 2019): learned positions, LayerNorm, one matrix for queries, keys and values."""
    width = config.number("n_embd", default=768)
    rows = config.number("vocab_size", default=50257)
    positions = config.number("n_positions", default=1024)
    layers = config.number("n_layer", default=12)
    ffn = config.number("n_inner", default=4 * width)
    layer = (
        *norm("ln_1", width, bias=True),
        # Conv1D keeps its matrix transposed: [into, out].
        Weight("attn.c_attn.weight", (width, 3 * width), "linear"),
        Weight("attn.c_attn.bias", (3 * width,), "vector"),
        Weight("attn.c_proj.weight", (width, width), "linear"),
        Weight("attn.c_proj.bias", (width,), "vector"),
        *norm("ln_2", width, bias=True),
        Weight("mlp.c_fc.weight", (width, ffn), "linear"),
        Weight("mlp.c_fc.bias", (ffn,), "vector"),
        Weight("mlp.c_proj.weight", (ffn, width), "linear"),
        Weight("mlp.c_proj.bias", (width,), "vector"),
    )
    blocks = [
        single("transformer", [*table("wte", rows, width), *table("wpe", positions, width)]),
        Block("transformer.h", layers, layer),
        single("transformer", norm("ln_f", width, bias=True)),
    ]
    tied = config.switch("tie_word_embeddings", True)
    if not tied:
        blocks.append(head(rows, width))
    heads = config.number("n_head", default=12)
    return Architecture(
        family="gpt2", seq2seq=False, hidden=width, vocabulary=rows, tied=tied, blocks=tuple(blocks),
        decoder=_plain_stack(layers, heads, width, ffn),
        positions=positions, dropout=config.share("resid_pdrop", 0.1),
    )  # fmt: skip


def gpt_neox(config: Settings, *, from_scratch: bool) -> Architecture:
    """GPT-NeoX and Pythia (Black et al. 2022): rotary positions, LayerNorm, biases everywhere."""
    width = config.number("hidden_size", default=6144)
    rows = config.number("vocab_size", default=50432)
    layers = config.number("num_hidden_layers", default=44)
    ffn = config.number("intermediate_size", default=24576)
    bias = config.switch("attention_bias", True)
    layer = (
        *norm("input_layernorm", width, bias=True),
        *norm("post_attention_layernorm", width, bias=True),
        *linear("attention.query_key_value", 3 * width, width, bias=bias),
        *linear("attention.dense", width, width, bias=bias),
        *linear("mlp.dense_h_to_4h", ffn, width, bias=True),
        *linear("mlp.dense_4h_to_h", width, ffn, bias=True),
    )
    tied = config.switch("tie_word_embeddings", False)
    blocks = [
        single("gpt_neox", table("embed_in", rows, width)),
        Block("gpt_neox.layers", layers, layer),
        single("gpt_neox", norm("final_layer_norm", width, bias=True)),
        *([] if tied else [head(rows, width)]),
    ]
    heads = config.number("num_attention_heads", default=64)
    return Architecture(
        family="gpt_neox", seq2seq=False, hidden=width, vocabulary=rows, tied=tied, blocks=tuple(blocks),
        decoder=_plain_stack(layers, heads, width, ffn),
        dropout=config.share("hidden_dropout", 0.0),
    )  # fmt: skip


def opt(config: Settings, *, from_scratch: bool) -> Architecture:
    """OPT (Zhang et al. 2022), with the two narrow-embedding projections of its smallest relative."""
    width = config.number("hidden_size", default=768)
    narrow = config.number("word_embed_proj_dim", default=width)
    rows = config.number("vocab_size", default=50272)
    positions = config.number("max_position_embeddings", default=2048)
    layers = config.number("num_hidden_layers", default=12)
    ffn = config.number("ffn_dim", default=3072)
    bias = config.switch("enable_bias", True)
    affine = config.switch("layer_norm_elementwise_affine", True)
    projections = (f"{each}_proj" for each in ("k", "v", "q", "out"))
    layer = (
        *(weight for each in projections for weight in linear(each, width, width, bias=bias)),
        *(norm("self_attn_layer_norm", width, bias=True) if affine else []),
        *linear("fc1", ffn, width, bias=bias),
        *linear("fc2", width, ffn, bias=bias),
        *(norm("final_layer_norm", width, bias=True) if affine else []),
    )
    ends = [
        *table("embed_tokens", rows, narrow),
        *table("embed_positions", positions + family_of("opt").unused_positions, width),
    ]
    if narrow != width:
        ends += [*linear("project_out", narrow, width), *linear("project_in", width, narrow)]
    before = config.switch("do_layer_norm_before", True) and not config.switch("_remove_final_layer_norm", False)
    if before and affine:
        ends += norm("final_layer_norm", width, bias=True)
    tied = config.switch("tie_word_embeddings", True)
    blocks = [single("decoder", ends), Block("decoder.layers", layers, layer)]
    if not tied:
        blocks.append(head(rows, narrow))
    heads = config.number("num_attention_heads", default=12)
    return Architecture(
        family="opt", seq2seq=False, hidden=width, vocabulary=rows, tied=tied, blocks=tuple(blocks),
        decoder=_plain_stack(layers, heads, width, ffn),
        positions=positions, dropout=config.share("dropout", 0.1),
    )  # fmt: skip


def falcon(config: Settings, *, from_scratch: bool) -> Architecture:
    """Falcon (Almazrouei et al. 2023): few keys and values, attention beside the feed-forward part."""
    width = config.number("hidden_size", "n_embed", default=4544)
    rows = config.number("vocab_size", default=65024)
    layers = config.number("num_hidden_layers", default=32)
    heads = config.number("num_attention_heads", default=71)
    ffn = config.number("ffn_hidden_size", default=4 * width)
    size, bias = width // heads, config.switch("bias", False)
    newer = config.switch("new_decoder_architecture", False)
    if newer:
        keys = config.number("num_kv_heads", default=heads) * size
    else:
        keys = size if config.switch("multi_query", True) else width
    norms = config.number("num_ln_in_parallel_attn", default=2 if newer else 1)
    names = ["ln_attn", "ln_mlp"] if norms == 2 else ["input_layernorm"]
    if not config.switch("parallel_attn", True):
        names = ["post_attention_layernorm", "input_layernorm"]
    layer = (
        *linear("self_attention.query_key_value", width + 2 * keys, width, bias=bias),
        *linear("self_attention.dense", width, width, bias=bias),
        *linear("mlp.dense_h_to_4h", ffn, width, bias=bias),
        *linear("mlp.dense_4h_to_h", width, ffn, bias=bias),
        *(weight for name in names for weight in norm(name, width, bias=True)),
    )
    tied = config.switch("tie_word_embeddings", True)
    blocks = [
        single("transformer", table("word_embeddings", rows, width)),
        Block("transformer.h", layers, layer),
        single("transformer", norm("ln_f", width, bias=True)),
        *([] if tied else [head(rows, width)]),
    ]
    stack = Stack(layers=layers, heads=heads, queries=width, keys=keys, ffn=ffn, gated=False, norms=len(names))
    return Architecture(
        family="falcon", seq2seq=False, hidden=width, vocabulary=rows, tied=tied, blocks=tuple(blocks), decoder=stack,
        dropout=config.share("hidden_dropout", 0.0),
    )  # fmt: skip


def bloom(config: Settings, *, from_scratch: bool) -> Architecture:
    """BLOOM (Le Scao et al. 2022): ALiBi instead of positions, a norm behind the embedding, biases everywhere."""
    width, rows = config.number("hidden_size", "n_embed", default=64), config.number("vocab_size", default=250880)
    layers = config.number("n_layer", "num_hidden_layers", default=2)
    heads = config.number("n_head", "num_attention_heads", default=8)
    layer = (
        *norm("input_layernorm", width, bias=True),
        *linear("self_attention.query_key_value", 3 * width, width, bias=True),
        *linear("self_attention.dense", width, width, bias=True),
        *norm("post_attention_layernorm", width, bias=True),
        *linear("mlp.dense_h_to_4h", 4 * width, width, bias=True),
        *linear("mlp.dense_4h_to_h", width, 4 * width, bias=True),
    )
    tied = config.switch("tie_word_embeddings", True)
    embedding = [*table("word_embeddings", rows, width), *norm("word_embeddings_layernorm", width, bias=True)]
    blocks = [
        single("transformer", embedding),
        Block("transformer.h", layers, layer),
        single("transformer", norm("ln_f", width, bias=True)),
        *([] if tied else [head(rows, width)]),
    ]
    return Architecture(
        family="bloom", seq2seq=False, hidden=width, vocabulary=rows, tied=tied, blocks=tuple(blocks),
        decoder=_plain_stack(layers, heads, width, 4 * width), dropout=config.share("hidden_dropout", 0.0),
    )  # fmt: skip


def gptj(config: Settings, *, from_scratch: bool) -> Architecture:
    """GPT-J (Wang and Komatsuzaki 2021): rotary positions, one norm a layer, an output embedding with a bias."""
    width, rows = config.number("n_embd", default=4096), config.number("vocab_size", default=50400)
    layers, heads = config.number("n_layer", default=28), config.number("n_head", default=16)
    ffn = config.number("n_inner", default=4 * width)
    layer = (
        *norm("ln_1", width, bias=True),
        *(weight for each in ("k", "v", "q", "out") for weight in linear(f"attn.{each}_proj", width, width)),
        *linear("mlp.fc_in", ffn, width, bias=True),
        *linear("mlp.fc_out", width, ffn, bias=True),
    )
    tied = config.switch("tie_word_embeddings", False)
    output = [Weight("weight", (rows, width), "head"), Weight("bias", (rows,), "vector")]
    blocks = [
        single("transformer", table("wte", rows, width)),
        Block("transformer.h", layers, layer),
        single("transformer", norm("ln_f", width, bias=True)),
        single("lm_head", output[1:] if tied else output),
    ]
    stack = Stack(layers=layers, heads=heads, queries=width, keys=width, ffn=ffn, gated=False, norms=1)
    return Architecture(
        family="gptj", seq2seq=False, hidden=width, vocabulary=rows, tied=tied, blocks=tuple(blocks), decoder=stack,
        dropout=config.share("resid_pdrop", 0.0),
    )  # fmt: skip
