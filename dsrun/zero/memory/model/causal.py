"""Decoder-only families with RMS norms: the exact parameter tensors transformers 5.23 builds from a config.json, in its
order."""

from typing import NamedTuple

from dsrun.zero.memory.model.architecture import LayerWeight
from dsrun.zero.memory.model.settings import ModelSettings
from dsrun.zero.memory.model.weights import head, linear, linears, norm, repeated, table_weight, under


class FamilyLayer(NamedTuple):
    """How one family departs from Llama's layer, with the defaults its config class has."""

    query_bias: bool | None = False
    """Bias of the q, k and v projections; None: as the config's attention_bias says."""
    output_bias: bool = False
    """Whether the attention's output projection follows attention_bias too."""
    query_norms: str = ""
    """"head": norms over each head of queries and keys; "all": over all heads at once."""
    fused: str = ""
    """"all": one matrix for q, k, v and one for gate and up (Phi-3); "mlp": only the latter (GLM)."""
    bias: bool = False
    """What attention_bias is unless the config says."""
    norms: int = 2
    mlp_bias: bool = False
    experts: bool = False
    expert_biases: bool = False
    """Router and experts have biases, and each head has a sink (gpt-oss)."""
    heads: int = 32
    keys: int | None = None
    head_dim: int | None = None


FAMILIES: dict[str, FamilyLayer] = {
    "llama": FamilyLayer(query_bias=None, output_bias=True, mlp_bias=True),
    "mistral": FamilyLayer(keys=8),
    "qwen2": FamilyLayer(query_bias=True, keys=32),
    "qwen3": FamilyLayer(query_bias=None, output_bias=True, query_norms="head", keys=32, head_dim=128),
    "gemma": FamilyLayer(query_bias=None, output_bias=True, heads=16, keys=16, head_dim=256),
    "gemma2": FamilyLayer(query_bias=None, output_bias=True, norms=4, heads=8, keys=4, head_dim=256),
    "gemma3_text": FamilyLayer(
        query_bias=None, output_bias=True, norms=4, query_norms="head", heads=8, keys=4, head_dim=256
    ),
    "olmo2": FamilyLayer(query_bias=None, output_bias=True, query_norms="all"),
    "phi3": FamilyLayer(fused="all"),
    "glm": FamilyLayer(query_bias=None, bias=True, fused="mlp", keys=2, head_dim=128),
    "glm4": FamilyLayer(query_bias=None, bias=True, fused="mlp", norms=4, keys=2, head_dim=128),
    "gpt_oss": FamilyLayer(
        query_bias=None, bias=True, output_bias=True, experts=True, expert_biases=True, heads=64, keys=8, head_dim=64
    ),
    "mixtral": FamilyLayer(experts=True, keys=8),
    "qwen3_moe": FamilyLayer(query_bias=None, output_bias=True, query_norms="head", experts=True, keys=4),
}


def llama(config: ModelSettings) -> list[LayerWeight]:
    """Llama and the many families that share its plan: rotary positions, RMS norms, gated feed-forward."""
    recipe = FAMILIES[config.word("model_type", "llama")]
    width, rows = config.number("hidden_size"), config.number("vocab_size")
    return [
        *table_weight("model.embed_tokens", rows, width),
        *_Layer(config, recipe, width).layers(config.number("num_hidden_layers")),
        *norm("model.norm", width),
        *head(config, rows, width),
    ]


class _Layer:
    def __init__(self, config: ModelSettings, recipe: FamilyLayer, width: int) -> None:
        self.config, self.recipe, self.width = config, recipe, width
        self.heads = config.number("num_attention_heads", default=recipe.heads)
        self.size = config.number("head_dim", default=recipe.head_dim or width // self.heads)
        self.queries = self.heads * self.size
        # Families whose config class names no default (Llama among them) mean "as many as there are heads".
        self.keys = config.number("num_key_value_heads", default=recipe.keys or self.heads) * self.size
        bias = config.switch("attention_bias", recipe.bias)
        self.query_bias = bias if recipe.query_bias is None else recipe.query_bias
        self.output_bias = bias and recipe.output_bias
        self.ffn = config.number("intermediate_size")
        self.plain = config.numbers("mlp_only_layers")
        many = 128 if recipe.expert_biases else 8
        self.experts = config.number("num_local_experts", "num_experts", default=many) if recipe.experts else 0

    def layers(self, count: int) -> list[LayerWeight]:
        """The layers in order; some of a mixture of experts may be plain."""
        kinds = {sparse: self._weights(sparse=sparse) for sparse in {self._is_sparse(each) for each in range(count)}}
        return [w for each in range(count) for w in under(f"model.layers.{each}", kinds[self._is_sparse(each)])]

    def _is_sparse(self, index: int) -> bool:
        if not self.experts or index in self.plain:
            return False
        return (index + 1) % self.config.number("decoder_sparse_step", default=1) == 0

    def _weights(self, *, sparse: bool) -> list[LayerWeight]:
        names = (
            "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm",
        )  # fmt: skip
        norms = [weight for name in names[: self.recipe.norms] for weight in norm(name, self.width)]
        mlp = self._experts() if sparse else self._mlp()
        return [*under("self_attn", self._attention()), *under("mlp", mlp), *norms]

    def _attention(self) -> list[LayerWeight]:
        width, queries, keys, bias = self.width, self.queries, self.keys, self.query_bias
        out = linear("o_proj", width, queries, bias=self.output_bias)
        if self.recipe.fused == "all":
            return [*out, *linear("qkv_proj", queries + 2 * keys, width)]
        projections = [
            *([LayerWeight("sinks", (self.heads,), "vector")] if self.recipe.expert_biases else []),
            *linear("q_proj", queries, width, bias=bias),
            *linears(("k_proj", "v_proj"), keys, width, bias=bias),
            *out,
        ]
        if self.recipe.query_norms:
            whole = self.recipe.query_norms == "all"
            projections += norm("q_norm", queries if whole else self.size)
            projections += norm("k_norm", keys if whole else self.size)
        return projections

    def _mlp(self) -> list[LayerWeight]:
        if self.recipe.fused:
            return [*linear("gate_up_proj", 2 * self.ffn, self.width), *linear("down_proj", self.width, self.ffn)]
        return _gated(self.ffn, self.width, bias=self.recipe.mlp_bias and self.config.switch("mlp_bias", False))

    def _experts(self) -> list[LayerWeight]:
        ffn = self.config.number("moe_intermediate_size", default=self.ffn)
        # transformers 5 stacks all experts' matrices into two; the router's matrix is not an nn.Linear either.
        router = LayerWeight("gate.weight", (self.experts, self.width), "experts")
        inside = LayerWeight("experts.gate_up_proj", (self.experts, 2 * ffn, self.width), "experts")
        outside = LayerWeight("experts.down_proj", (self.experts, self.width, ffn), "experts")
        if self.recipe.expert_biases:
            return [
                router,
                LayerWeight("router.bias", (self.experts,), "vector"),
                LayerWeight("experts.gate_up_proj", (self.experts, self.width, 2 * ffn), "experts"),
                LayerWeight("experts.gate_up_proj_bias", (self.experts, 2 * ffn), "experts"),
                LayerWeight("experts.down_proj", (self.experts, ffn, self.width), "experts"),
                LayerWeight("experts.down_proj_bias", (self.experts, self.width), "experts"),
            ]
        return [router, inside, outside] if self.recipe.query_norms == "" else [inside, outside, router]


def deepseek_v3(config: ModelSettings) -> list[LayerWeight]:
    """DeepSeek-V3 (DeepSeek-AI 2024): low-rank queries, keys and values, shared beside routed experts."""
    width, rows = config.number("hidden_size", default=7168), config.number("vocab_size", default=129280)
    layers = config.number("num_hidden_layers", default=61)
    experts = config.number("n_routed_experts", "num_local_experts", default=256)
    ffn = config.number("moe_intermediate_size", default=2048)
    dense = _gated(config.number("intermediate_size", default=18432), width)
    sparse = [
        LayerWeight("experts.gate_up_proj", (experts, 2 * ffn, width), "experts"),
        LayerWeight("experts.down_proj", (experts, width, ffn), "experts"),
        LayerWeight("gate.weight", (experts, width), "experts"),
        *under("shared_experts", _gated(ffn * config.number("n_shared_experts", default=1), width)),
    ]
    attention = under("self_attn", _low_rank_attention(config, width))
    norms = [*norm("input_layernorm", width), *norm("post_attention_layernorm", width)]
    first = min(layers, config.number("first_k_dense_replace", default=3, least=0))
    return [
        *table_weight("model.embed_tokens", rows, width),
        *repeated("model.layers", range(first), [*attention, *under("mlp", dense), *norms]),
        *repeated("model.layers", range(first, layers), [*attention, *under("mlp", sparse), *norms]),
        *norm("model.norm", width),
        *head(config, rows, width),
    ]


def _low_rank_attention(config: ModelSettings, width: int) -> list[LayerWeight]:
    """Multi-head latent attention."""
    heads, bias = config.number("num_attention_heads", default=128), config.switch("attention_bias", False)
    rank, rotary = config.number("kv_lora_rank", default=512), config.number("qk_rope_head_dim", default=64)
    plain, values = config.number("qk_nope_head_dim", default=128), config.number("v_head_dim", default=128)
    queries = heads * (plain + rotary)
    # A config that says null has full queries.
    low = None if config.config.get("q_lora_rank", 0) is None else config.number("q_lora_rank", default=1536)
    if low is None:
        query = linear("q_proj", queries, width)
    else:
        query = [
            *linear("q_a_proj", low, width, bias=bias),
            *norm("q_a_layernorm", low),
            *linear("q_b_proj", queries, low),
        ]
    return [
        *query,
        *linear("kv_a_proj_with_mqa", rank + rotary, width, bias=bias),
        *norm("kv_a_layernorm", rank),
        *linear("kv_b_proj", heads * (plain + values), rank),
        *linear("o_proj", width, heads * values, bias=bias),
    ]


def _gated(ffn: int, width: int, *, bias: bool = False) -> list[LayerWeight]:
    return [*linears(("gate_proj", "up_proj"), ffn, width, bias=bias), *linear("down_proj", width, ffn, bias=bias)]
