"""Decoder-only families with LayerNorm: the exact parameter tensors transformers 5.23 builds from a config.json, in its
order."""

from dsrun.models.families import family_of
from dsrun.zero.memory.model.architecture import LayerWeight
from dsrun.zero.memory.model.settings import ModelSettings
from dsrun.zero.memory.model.weights import head, linear, linears, norm, repeated, table_weight


def gpt2(config: ModelSettings) -> list[LayerWeight]:
    """GPT-2 (Radford et al. 2019): learned positions, LayerNorm, one matrix for queries, keys and values."""
    width = config.number("n_embd", default=768)
    rows = config.number("vocab_size", default=50257)
    ffn = config.number("n_inner", default=4 * width)
    # Conv1D keeps its matrix transposed: [into, out].
    layer = (
        *norm("ln_1", width, bias=True),
        LayerWeight("attn.c_attn.weight", (width, 3 * width), "linear"),
        LayerWeight("attn.c_attn.bias", (3 * width,), "vector"),
        LayerWeight("attn.c_proj.weight", (width, width), "linear"),
        LayerWeight("attn.c_proj.bias", (width,), "vector"),
        *norm("ln_2", width, bias=True),
        LayerWeight("mlp.c_fc.weight", (width, ffn), "linear"),
        LayerWeight("mlp.c_fc.bias", (ffn,), "vector"),
        LayerWeight("mlp.c_proj.weight", (ffn, width), "linear"),
        LayerWeight("mlp.c_proj.bias", (width,), "vector"),
    )
    return [
        *table_weight("transformer.wte", rows, width),
        *table_weight("transformer.wpe", config.number("n_positions", default=1024), width),
        *repeated("transformer.h", range(config.number("n_layer", default=12)), layer),
        *norm("transformer.ln_f", width, bias=True),
        *head(config, rows, width),
    ]


def gpt_neox(config: ModelSettings) -> list[LayerWeight]:
    """GPT-NeoX and Pythia (Black et al. 2022): rotary positions, LayerNorm, biases everywhere."""
    width = config.number("hidden_size", default=6144)
    rows = config.number("vocab_size", default=50432)
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
    return [
        *table_weight("gpt_neox.embed_in", rows, width),
        *repeated("gpt_neox.layers", range(config.number("num_hidden_layers", default=44)), layer),
        *norm("gpt_neox.final_layer_norm", width, bias=True),
        *head(config, rows, width),
    ]


def opt(config: ModelSettings) -> list[LayerWeight]:
    """OPT (Zhang et al. 2022), with the two narrow-embedding projections of its smallest relative."""
    width = config.number("hidden_size", default=768)
    narrow = config.number("word_embed_proj_dim", default=width)
    rows = config.number("vocab_size", default=50272)
    positions = config.number("max_position_embeddings", default=2048) + family_of("opt").unused_positions
    ffn = config.number("ffn_dim", default=3072)
    bias = config.switch("enable_bias", True)
    affine = config.switch("layer_norm_elementwise_affine", True)
    layer = (
        *linears((f"self_attn.{each}_proj" for each in ("k", "v", "q", "out")), width, width, bias=bias),
        *(norm("self_attn_layer_norm", width, bias=True) if affine else []),
        *linear("fc1", ffn, width, bias=bias),
        *linear("fc2", width, ffn, bias=bias),
        *(norm("final_layer_norm", width, bias=True) if affine else []),
    )
    weights = [
        *table_weight("decoder.embed_tokens", rows, narrow),
        *table_weight("decoder.embed_positions", positions, width),
    ]
    if narrow != width:
        weights += [*linear("decoder.project_out", narrow, width), *linear("decoder.project_in", width, narrow)]
    before = config.switch("do_layer_norm_before", True) and not config.switch("_remove_final_layer_norm", False)
    if before and affine:
        weights += norm("decoder.final_layer_norm", width, bias=True)
    layers = repeated("decoder.layers", range(config.number("num_hidden_layers", default=12)), layer)
    return [*weights, *layers, *head(config, rows, narrow)]


def falcon(config: ModelSettings) -> list[LayerWeight]:
    """Falcon (Almazrouei et al. 2023): few keys and values, attention beside the feed-forward part."""
    width = config.number("hidden_size", "n_embed", default=4544)
    rows = config.number("vocab_size", default=65024)
    heads = config.number("num_attention_heads", default=71)
    ffn = config.number("ffn_hidden_size", default=4 * width)
    size, bias = width // heads, config.switch("bias", False)
    newer = config.switch("new_decoder_architecture", False)
    if newer:
        keys = config.number("num_kv_heads", default=heads) * size
    else:
        keys = size if config.switch("multi_query", True) else width
    two = config.number("num_ln_in_parallel_attn", default=2 if newer else 1) == 2
    names = ["ln_attn", "ln_mlp"] if two else ["input_layernorm"]
    if not config.switch("parallel_attn", True):
        names = ["post_attention_layernorm", "input_layernorm"]
    layer = (
        *linear("self_attention.query_key_value", width + 2 * keys, width, bias=bias),
        *linear("self_attention.dense", width, width, bias=bias),
        *linear("mlp.dense_h_to_4h", ffn, width, bias=bias),
        *linear("mlp.dense_4h_to_h", width, ffn, bias=bias),
        *(weight for name in names for weight in norm(name, width, bias=True)),
    )
    return [
        *table_weight("transformer.word_embeddings", rows, width),
        *repeated("transformer.h", range(config.number("num_hidden_layers", default=32)), layer),
        *norm("transformer.ln_f", width, bias=True),
        *head(config, rows, width),
    ]


def bloom(config: ModelSettings) -> list[LayerWeight]:
    """BLOOM (Le Scao et al. 2022): ALiBi instead of positions, a norm behind the embedding, biases everywhere."""
    width, rows = config.number("hidden_size", "n_embed", default=64), config.number("vocab_size", default=250880)
    layer = (
        *norm("input_layernorm", width, bias=True),
        *linear("self_attention.query_key_value", 3 * width, width, bias=True),
        *linear("self_attention.dense", width, width, bias=True),
        *norm("post_attention_layernorm", width, bias=True),
        *linear("mlp.dense_h_to_4h", 4 * width, width, bias=True),
        *linear("mlp.dense_4h_to_h", width, 4 * width, bias=True),
    )
    return [
        *table_weight("transformer.word_embeddings", rows, width),
        *norm("transformer.word_embeddings_layernorm", width, bias=True),
        *repeated("transformer.h", range(config.number("n_layer", "num_hidden_layers", default=2)), layer),
        *norm("transformer.ln_f", width, bias=True),
        *head(config, rows, width),
    ]


def gptj(config: ModelSettings) -> list[LayerWeight]:
    """GPT-J (Wang and Komatsuzaki 2021): rotary positions, one norm a layer, an output embedding with a bias."""
    width, rows = config.number("n_embd", default=4096), config.number("vocab_size", default=50400)
    ffn = config.number("n_inner", default=4 * width)
    layer = (
        *norm("ln_1", width, bias=True),
        *linears((f"attn.{each}_proj" for each in ("k", "v", "q", "out")), width, width),
        *linear("mlp.fc_in", ffn, width, bias=True),
        *linear("mlp.fc_out", width, ffn, bias=True),
    )
    return [
        *table_weight("transformer.wte", rows, width),
        *repeated("transformer.h", range(config.number("n_layer", default=28)), layer),
        *norm("transformer.ln_f", width, bias=True),
        *head(config, rows, width),
        LayerWeight("lm_head.bias", (rows,), "vector"),
    ]
