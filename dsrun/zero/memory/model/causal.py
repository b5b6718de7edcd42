"""Decoder-only families: the exact parameter tensors transformers 5.23 builds from a config.json, in its order."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from dsrun.model_families import family_of
from dsrun.zero.memory.model.architecture import Architecture, Block, Stack, Weight
from dsrun.zero.memory.model.configs import Settings
from dsrun.zero.memory.model.seq2seq import head, linear, norm, single, table


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How one family departs from Llama's layer, with the defaults its config class has."""

    query_bias: bool | None = False
    """Bias of the q, k and v projections; None: as the config's attention_bias says."""
    output_bias: bool = False
    """Whether the attention's output projection follows attention_bias too."""
    query_norms: str = ""
    """"head": norms over each head of queries and keys; "all": over all heads at once."""
    fused: bool = False
    """One matrix for q, k, v and one for gate and up (Phi-3)."""
    norms: int = 2
    mlp_bias: bool = False
    experts: bool = False
    tied: bool = False
    heads: int = 32
    keys: int | None = None
    head_dim: int | None = None


FAMILIES: dict[str, Recipe] = {
    "llama": Recipe(query_bias=None, output_bias=True, mlp_bias=True),
    "mistral": Recipe(keys=8),
    "qwen2": Recipe(query_bias=True, keys=32),
    "qwen3": Recipe(query_bias=None, output_bias=True, query_norms="head", keys=32, head_dim=128),
    "gemma": Recipe(query_bias=None, output_bias=True, tied=True, heads=16, keys=16, head_dim=256),
    "gemma2": Recipe(query_bias=None, output_bias=True, norms=4, tied=True, heads=8, keys=4, head_dim=256),
    "gemma3_text": Recipe(
        query_bias=None, output_bias=True, norms=4, query_norms="head", tied=True, heads=8, keys=4, head_dim=256
    ),
    "olmo2": Recipe(query_bias=None, output_bias=True, query_norms="all"),
    "phi3": Recipe(fused=True),
    "mixtral": Recipe(experts=True, keys=8),
    "qwen3_moe": Recipe(query_bias=None, output_bias=True, query_norms="head", experts=True, keys=4),
}


def llama(config: Settings, *, from_scratch: bool) -> Architecture:
    """Llama and the many families that share its plan: rotary positions, RMS norms, gated feed-forward."""
    family = config.word("model_type", "llama")
    recipe = FAMILIES[family]
    width, rows = config.number("hidden_size"), config.number("vocab_size")
    heads = config.number("num_attention_heads", default=recipe.heads)
    # Families whose config class names no default (Llama among them) mean "as many as there are heads".
    keys = config.number("num_key_value_heads", default=recipe.keys or heads)
    size = config.number("head_dim", default=recipe.head_dim or width // heads)
    layer = _Layer(config, recipe, width=width, queries=heads * size, keys=keys * size, size=size)
    layers = config.number("num_hidden_layers")
    tied = config.switch("tie_word_embeddings", recipe.tied)
    blocks = [single("model", table("embed_tokens", rows, width)), *layer.blocks(layers)]
    blocks.append(single("model", norm("norm", width)))
    if not tied:
        blocks.append(head(rows, width))
    stack = Stack(
        layers=layers, heads=heads, queries=heads * size, keys=keys * size, ffn=layer.active_ffn(), gated=True,
        norms=recipe.norms, query_norms=bool(recipe.query_norms), experts=layer.experts,
        experts_per_token=layer.per_token,
    )  # fmt: skip
    return Architecture(
        family=family, seq2seq=False, hidden=width, vocabulary=rows, tied=tied, blocks=tuple(blocks), decoder=stack,
        norm="rms", positions=None, dropout=0.0,
    )  # fmt: skip


class _Layer:
    def __init__(self, config: Settings, recipe: Recipe, *, width: int, queries: int, keys: int, size: int) -> None:
        self.config, self.recipe = config, recipe
        self.width, self.queries, self.keys, self.size = width, queries, keys, size
        bias = config.switch("attention_bias", False)
        self.query_bias = bias if recipe.query_bias is None else recipe.query_bias
        self.output_bias = bias and recipe.output_bias
        self.ffn = config.number("intermediate_size")
        self.experts = self.per_token = 0
        self.plain = config.numbers("mlp_only_layers")
        if recipe.experts:
            self.experts = config.number("num_local_experts", "num_experts", default=8)
            self.per_token = config.number("num_experts_per_tok", default=2)

    def blocks(self, layers: int) -> list[Block]:
        """The layers in order; some of a mixture of experts may be plain."""
        each = (self._weights(sparse=self._is_sparse(index)) for index in range(layers))
        return [Block("model.layers", len(list(run)), weights) for weights, run in groupby(each)]

    def active_ffn(self) -> int:
        """The feed-forward width one token goes through."""
        return self.per_token * self._expert_ffn() if self.experts else self.ffn

    def _is_sparse(self, index: int) -> bool:
        if not self.experts or index in self.plain:
            return False
        return (index + 1) % self.config.number("decoder_sparse_step", default=1) == 0

    def _expert_ffn(self) -> int:
        return self.config.number("moe_intermediate_size", default=self.ffn)

    def _weights(self, *, sparse: bool) -> tuple[Weight, ...]:
        attention, mlp = self._attention(), self._experts() if sparse else self._mlp()
        names = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_ffn")
        norms = [weight for name in names[: self.recipe.norms] for weight in norm(name, self.width)]
        return (*attention, *mlp, *norms)

    def _attention(self) -> list[Weight]:
        width, queries, keys, bias = self.width, self.queries, self.keys, self.query_bias
        out = linear("o_proj", width, queries, bias=self.output_bias)
        if self.recipe.fused:
            return [*out, *linear("qkv_proj", queries + 2 * keys, width)]
        projections = [
            *linear("q_proj", queries, width, bias=bias),
            *linear("k_proj", keys, width, bias=bias),
            *linear("v_proj", keys, width, bias=bias),
            *out,
        ]
        if self.recipe.query_norms:
            whole = self.recipe.query_norms == "all"
            projections += norm("q_norm", queries if whole else self.size)
            projections += norm("k_norm", keys if whole else self.size)
        return projections

    def _mlp(self) -> list[Weight]:
        if self.recipe.fused:
            return [*linear("gate_up", 2 * self.ffn, self.width), *linear("down", self.width, self.ffn)]
        bias = self.recipe.mlp_bias and self.config.switch("mlp_bias", False)
        into = [weight for each in ("gate", "up") for weight in linear(each, self.ffn, self.width, bias=bias)]
        return [*into, *linear("down", self.width, self.ffn, bias=bias)]

    def _experts(self) -> list[Weight]:
        ffn = self._expert_ffn()
        # transformers 5 stacks all experts' matrices into two; the router's matrix is not an nn.Linear either.
        router = Weight("gate.weight", (self.experts, self.width), "experts")
        inside = Weight("experts.gate_up_proj", (self.experts, 2 * ffn, self.width), "experts")
        outside = Weight("experts.down_proj", (self.experts, self.width, ffn), "experts")
        return [router, inside, outside] if self.recipe.query_norms == "" else [inside, outside, router]


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
