"""Encoder-decoder families: the exact parameter tensors transformers 5.23 builds from a config.json, in its order."""

from __future__ import annotations

from dsrun.models.families import family_of
from dsrun.zero.memory.model.architecture import Architecture, Block, Stack, Weight
from dsrun.zero.memory.model.settings import Settings


def linear(name: str, out: int, into: int, *, bias: bool = False) -> list[Weight]:
    """A linear layer's matrix of [out, into] and, with `bias`, its vector."""
    weights = [Weight(f"{name}.weight", (out, into), "linear")]
    return [*weights, Weight(f"{name}.bias", (out,), "vector")] if bias else weights


def norm(name: str, width: int, *, bias: bool = False) -> list[Weight]:
    """A norm's scale and, with `bias` (LayerNorm), its shift."""
    weights = [Weight(f"{name}.weight", (width,), "vector")]
    return [*weights, Weight(f"{name}.bias", (width,), "vector")] if bias else weights


def table(name: str, rows: int, width: int) -> list[Weight]:
    """An embedding table."""
    return [Weight(f"{name}.weight", (rows, width), "embedding")]


def head(rows: int, width: int) -> Block:
    """An output embedding of its own."""
    return Block("lm_head", 1, (Weight("weight", (rows, width), "head"),))


def single(name: str, weights: list[Weight]) -> Block:
    return Block(name, 1, tuple(weights))


# T5, mT5 and umT5


def t5(config: Settings, *, from_scratch: bool) -> Architecture:
    """T5 (Raffel et al. 2020), v1.1, mT5 and umT5.

    transformers 5 builds all of them with tied embeddings. A published v1.1 or mT5 checkpoint says
    `tie_word_embeddings: false` and brings an output embedding of its own, which loading then keeps apart.
    """
    family = config.word("model_type", "t5")
    small = family == "t5"
    width = config.number("d_model", default=512)
    inner = config.number("num_heads", default=8 if small else 6) * config.number("d_kv", default=64)
    rows = config.number("vocab_size", default=32128 if small else 250112)
    encoder_layers = config.number("num_layers", default=6 if small else 8)
    decoder_layers = config.number("num_decoder_layers", default=encoder_layers)
    feed_forward = config.word("feed_forward_proj", "relu" if small else "gated-gelu")
    gated = feed_forward.startswith("gated-")
    ffn = config.number("d_ff", default=2048 if small else 1024)
    tied = from_scratch or config.switch("tie_word_embeddings", True)
    make = _T5Layers(config, width, inner, ffn, gated, everywhere=family == "umt5")
    blocks = [
        single("shared", table("shared", rows, width)),
        *make.stack("encoder", encoder_layers, cross=False),
        *make.stack("decoder", decoder_layers, cross=True),
        *([] if tied else [head(rows, width)]),
    ]
    heads = config.number("num_heads", default=8 if small else 6)

    def side(layers: int, *, cross: bool) -> Stack:
        norms = 3 if cross else 2
        return Stack(
            layers=layers, heads=heads, queries=inner, keys=inner, ffn=ffn, gated=gated, norms=norms, cross=cross
        )  # fmt: skip

    return Architecture(
        family=family, seq2seq=True, hidden=width, vocabulary=rows, tied=tied, blocks=tuple(blocks), norm="t5",
        encoder=side(encoder_layers, cross=False), decoder=side(decoder_layers, cross=True), relative_bias=True,
        dropout=config.share("dropout_rate", 0.1),
    )  # fmt: skip


class _T5Layers:
    def __init__(self, config: Settings, width: int, inner: int, ffn: int, gated: bool, *, everywhere: bool) -> None:
        self.width, self.inner, self.ffn, self.gated, self.everywhere = width, inner, ffn, gated, everywhere
        buckets = config.number("relative_attention_num_buckets", default=32)
        heads = config.number("num_heads", default=8 if config.word("model_type", "") == "t5" else 6)
        self.bias = [Weight("relative_attention_bias.weight", (buckets, heads), "embedding")]

    def stack(self, name: str, layers: int, *, cross: bool) -> list[Block]:
        """One side; only its first layer holds the table of position biases, in umT5 every layer does."""
        first, rest = (layers, 0) if self.everywhere else (1, layers - 1)
        blocks = [Block(f"{name}.block", first, self.layer(cross=cross, biased=True))]
        if rest:
            blocks.append(Block(f"{name}.block", rest, self.layer(cross=cross, biased=False)))
        return [*blocks, single(name, norm("final_layer_norm", self.width))]

    def layer(self, *, cross: bool, biased: bool) -> tuple[Weight, ...]:
        weights = [*self.attention(), *(self.bias if biased else []), *norm("layer_norm", self.width)]
        if cross:
            weights += [*self.attention(), *norm("layer_norm", self.width)]
        for each in ("wi_0", "wi_1") if self.gated else ("wi",):
            weights += linear(each, self.ffn, self.width)
        return (*weights, *linear("wo", self.width, self.ffn), *norm("layer_norm", self.width))

    def attention(self) -> list[Weight]:
        into = [weight for each in "qkv" for weight in linear(each, self.inner, self.width)]
        return [*into, *linear("o", self.width, self.inner)]


# BART and what descends from it

FIXED_POSITIONS = ("marian", "pegasus")
"""Sinusoidal positions kept as an untrained table; M2M-100 computes them outside of its parameters."""


def bart(config: Settings, *, from_scratch: bool) -> Architecture:
    """BART, mBART, Marian, Pegasus and M2M-100 (NLLB): one layer plan, different ends."""
    family = config.word("model_type", "bart")
    width = config.number("d_model", default=1024)
    rows = config.number("vocab_size", default={"marian": 58101, "m2m_100": 128112}.get(family, 50265))
    tied = config.switch("tie_word_embeddings", True)
    shared = family != "marian" or config.switch("share_encoder_decoder_embeddings", True)
    # Untied, both sides get tables of their own beside the shared one.
    own = not (shared and tied)
    decoder_rows = rows if shared else config.number("decoder_vocab_size", default=rows)
    blocks = [single("shared", table("shared", rows, width))] if shared else []
    stacks = {}
    for side in ("encoder", "decoder"):
        stack, layer = _bart_layer(config, side, width)
        stacks[side] = stack
        side_rows = [] if not own else table("embed_tokens", decoder_rows if side == "decoder" else rows, width)
        before, after = _bart_ends(config, family, width)
        blocks += [single(side, [*side_rows, *before]), Block(f"{side}.layers", stack.layers, layer)]
        # marian and pegasus list their own norms around the layers in the same places
        blocks += [single(side, after)] if after else []
    if not tied:
        blocks.append(head(decoder_rows, width))
    return Architecture(
        family=family, seq2seq=True, hidden=width, vocabulary=decoder_rows, tied=tied,
        blocks=tuple(block for block in blocks if block.weights), norm="layer", encoder=stacks["encoder"],
        decoder=stacks["decoder"], positions=None if family == "m2m_100" else _positions(config),
        dropout=config.share("dropout", 0.1),
    )  # fmt: skip


def _positions(config: Settings) -> int:
    return config.number("max_position_embeddings", default=1024)


def _bart_ends(config: Settings, family: str, width: int) -> tuple[list[Weight], list[Weight]]:
    """What stands before and after the layers of one side."""
    final = norm("layer_norm", width, bias=True)
    if family in FIXED_POSITIONS:
        positions = [Weight("embed_positions.weight", (_positions(config), width), "frozen")]
        return positions, final if family == "pegasus" else []
    if family == "m2m_100":
        return [], final
    rows = _positions(config) + family_of(family).unused_positions
    positions = table("embed_positions", rows, width)
    embedding = norm("layernorm_embedding", width, bias=True)
    return (positions, [*embedding, *final]) if family == "mbart" else (positions, embedding)


def _bart_layer(config: Settings, side: str, width: int) -> tuple[Stack, tuple[Weight, ...]]:
    cross = side == "decoder"
    ffn = config.number(f"{side}_ffn_dim", default=4096)
    weights = [*_bart_attention("self_attn", width), *norm("self_attn_layer_norm", width, bias=True)]
    if cross:
        weights += _bart_attention("encoder_attn", width)
        weights += norm("encoder_attn_layer_norm", width, bias=True)
    weights += [*linear("fc1", ffn, width, bias=True), *linear("fc2", width, ffn, bias=True)]
    weights += norm("final_layer_norm", width, bias=True)
    stack = Stack(
        layers=config.number(f"{side}_layers", default=12),
        heads=config.number(f"{side}_attention_heads", default=16),
        queries=width, keys=width, ffn=ffn, gated=False, norms=3 if cross else 2, cross=cross,
    )  # fmt: skip
    return stack, tuple(weights)


def _bart_attention(name: str, width: int) -> list[Weight]:
    projections = (f"{name}.{each}_proj" for each in ("k", "v", "q", "out"))
    return [weight for each in projections for weight in linear(each, width, width, bias=True)]
