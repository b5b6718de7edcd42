"""Models that read images and text: the exact parameter tensors transformers 5.23 builds from a config.json, in its
order."""

from typing import Any

from dsrun.errors import UsageError
from dsrun.zero.memory.model.architecture import LayerWeight
from dsrun.zero.memory.model.causal import llama
from dsrun.zero.memory.model.settings import ModelSettings
from dsrun.zero.memory.model.weights import linear, linears, norm, repeated, table_weight, under

# Of Gemma3TextConfig, which published configs leave out.
_TEXT = {"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "vocab_size": 262_208}


def gemma3(config: ModelSettings) -> list[LayerWeight]:
    """Gemma 3 (Gemma Team 2025): a SigLIP tower, a projection, and the text model, whose widths are the model's."""
    text = {**_TEXT, **_inner(config, "text_config"), "model_type": "gemma3_text"}
    tower = ModelSettings(_inner(config, "vision_config"))
    seen = tower.number("hidden_size", default=768)
    projector = [
        LayerWeight("mm_input_projection_weight", (seen, ModelSettings(text).number("hidden_size")), "experts"),
        *norm("mm_soft_emb_norm", seen),
    ]
    return [*siglip(tower), *under("model.multi_modal_projector", projector), *llama(ModelSettings(text))]


def _inner(config: ModelSettings, name: str) -> dict[str, Any]:
    found = config.config.get(name)
    if not isinstance(found, dict | None):
        raise UsageError(f"config.json: {name} is not an object")
    return found or {}


def siglip(config: ModelSettings) -> list[LayerWeight]:
    """SigLIP's image encoder (Zhai et al. 2023); `vision_use_head`: with the head that pools its output."""
    width = config.number("hidden_size", default=768)
    ffn = config.number("intermediate_size", default=3072)
    patch, channels = config.number("patch_size", default=16), config.number("num_channels", default=3)
    patches = (config.number("image_size", default=224) // patch) ** 2
    mlp = (*linear("mlp.fc1", ffn, width, bias=True), *linear("mlp.fc2", width, ffn, bias=True))
    layer = (
        *norm("layer_norm1", width, bias=True),
        *linears((f"self_attn.{each}_proj" for each in ("k", "v", "q", "out")), width, width, bias=True),
        *norm("layer_norm2", width, bias=True),
        *mlp,
    )
    weights = [
        LayerWeight("embeddings.patch_embedding.weight", (width, channels, patch, patch), "experts"),
        LayerWeight("embeddings.patch_embedding.bias", (width,), "vector"),
        *table_weight("embeddings.position_embedding", patches, width),
        *repeated("encoder.layers", range(config.number("num_hidden_layers", default=12)), layer),
        *norm("post_layernorm", width, bias=True),
    ]
    if config.switch("vision_use_head", True):
        pooling = [
            LayerWeight("probe", (1, 1, width), "experts"),
            LayerWeight("attention.in_proj_weight", (3 * width, width), "experts"),
            LayerWeight("attention.in_proj_bias", (3 * width,), "vector"),
            *linear("attention.out_proj", width, width, bias=True),
            *norm("layernorm", width, bias=True),
            *mlp,
        ]
        weights += under("head", pooling)
    return under("vision_tower", weights)
