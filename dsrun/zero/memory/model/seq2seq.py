"""Encoder-decoder families: the exact parameter tensors transformers 5.23 builds from a config.json, in its order."""

from dsrun.models.families import family_of
from dsrun.zero.memory.model.architecture import LayerWeight
from dsrun.zero.memory.model.settings import ModelSettings
from dsrun.zero.memory.model.weights import head, linear, linears, norm, repeated, table_weight, under


def t5(config: ModelSettings) -> list[LayerWeight]:
    """T5 (Raffel et al. 2020), v1.1, mT5 and umT5.

    transformers 5 builds all of them with tied embeddings. A published v1.1 or mT5 checkpoint says
    `tie_word_embeddings: false` and brings an output embedding of its own, which loading then keeps apart.
    """
    family = config.word("model_type", "t5")
    small = family == "t5"
    width = config.number("d_model", default=512)
    rows = config.number("vocab_size", default=32128 if small else 250112)
    encoder = config.number("num_layers", default=6 if small else 8)
    decoder = config.number("num_decoder_layers", default=encoder)
    return [
        *table_weight("shared", rows, width),
        *_t5_side(config, "encoder", encoder, width),
        *_t5_side(config, "decoder", decoder, width),
        *head(config, rows, width),
    ]


def _t5_side(config: ModelSettings, side: str, layers: int, width: int) -> list[LayerWeight]:
    """One side; only its first layer holds the table of position biases, in umT5 every layer does."""
    family = config.word("model_type", "t5")
    small = family == "t5"
    heads = config.number("num_heads", default=8 if small else 6)
    inner = heads * config.number("d_kv", default=64)
    ffn = config.number("d_ff", default=2048 if small else 1024)
    gated = config.word("feed_forward_proj", "relu" if small else "gated-gelu").startswith("gated-")
    bias = table_weight("relative_attention_bias", config.number("relative_attention_num_buckets", default=32), heads)
    attention = [*linears("qkv", inner, width), *linear("o", width, inner)]
    mlp = [*linears(("wi_0", "wi_1") if gated else ("wi",), ffn, width), *linear("wo", width, ffn)]

    def layer(*, biased: bool) -> list[LayerWeight]:
        parts = [under("SelfAttention", [*attention, *(bias if biased else [])])]
        parts += [under("EncDecAttention", attention)] if side == "decoder" else []
        parts += [under("DenseReluDense", mlp)]
        return [w for i, each in enumerate(parts) for w in under(f"layer.{i}", [*each, *norm("layer_norm", width)])]

    first = layers if family == "umt5" else 1
    return [
        *repeated(f"{side}.block", range(first), layer(biased=True)),
        *repeated(f"{side}.block", range(first, layers), layer(biased=False)),
        *norm(f"{side}.final_layer_norm", width),
    ]


def bart(config: ModelSettings) -> list[LayerWeight]:
    """BART, mBART, Marian, Pegasus and M2M-100 (NLLB): one layer plan, different ends."""
    family = config.word("model_type", "bart")
    width = config.number("d_model", default=1024)
    rows = config.number("vocab_size", default={"marian": 58101, "m2m_100": 128112}.get(family, 50265))
    shared = family != "marian" or config.switch("share_encoder_decoder_embeddings", True)
    # Untied, both sides get tables of their own beside the shared one.
    own = not (shared and config.switch("tie_word_embeddings", True))
    decoder_rows = rows if shared else config.number("decoder_vocab_size", default=rows)
    weights = table_weight("shared", rows, width) if shared else []
    for side in ("encoder", "decoder"):
        before, after = _bart_ends(config, family, width)
        own_table = table_weight("embed_tokens", decoder_rows if side == "decoder" else rows, width) if own else []
        layers = range(config.number(f"{side}_layers", default=12))
        weights += under(side, [*own_table, *before, *repeated("layers", layers, _bart_layer(config, side, width))])
        # marian and pegasus list their own norms around the layers in the same places
        weights += under(side, after)
    return [*weights, *head(config, decoder_rows, width)]


def _bart_ends(config: ModelSettings, family: str, width: int) -> tuple[list[LayerWeight], list[LayerWeight]]:
    """What stands before and after the layers of one side."""
    final = norm("layer_norm", width, bias=True)
    if family == "m2m_100":  # which computes its positions outside of its parameters
        return [], final
    rows = config.number("max_position_embeddings", default=1024)
    if family_of(family).computed_positions:
        positions = [LayerWeight("embed_positions.weight", (rows, width), "frozen")]
        return positions, final if family == "pegasus" else []
    positions = table_weight("embed_positions", rows + family_of(family).unused_positions, width)
    embedding = norm("layernorm_embedding", width, bias=True)
    return (positions, [*embedding, *final]) if family == "mbart" else (positions, embedding)


def _bart_layer(config: ModelSettings, side: str, width: int) -> list[LayerWeight]:
    ffn = config.number(f"{side}_ffn_dim", default=4096)
    weights = []
    for name in ("self_attn", "encoder_attn") if side == "decoder" else ("self_attn",):
        weights += linears((f"{name}.{each}_proj" for each in ("k", "v", "q", "out")), width, width, bias=True)
        weights += norm(f"{name}_layer_norm", width, bias=True)
    weights += [*linear("fc1", ffn, width, bias=True), *linear("fc2", width, ffn, bias=True)]
    return [*weights, *norm("final_layer_norm", width, bias=True)]
