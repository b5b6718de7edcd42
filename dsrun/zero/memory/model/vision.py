"""Models that read images and text: the exact parameter tensors transformers 5.23 builds from a config.json, in its
order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dsrun.errors import UsageError
from dsrun.zero.memory.model.architecture import Architecture, Block, Weight
from dsrun.zero.memory.model.causal import llama
from dsrun.zero.memory.model.seq2seq import linear, norm, single, table
from dsrun.zero.memory.model.settings import Settings

# Of Gemma3TextConfig, which published configs leave out.
_TEXT = {"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "vocab_size": 262_208}


def gemma3(config: Settings, *, from_scratch: bool) -> Architecture:
    """Gemma 3 (Gemma Team 2025): a SigLIP tower, a projection, and the text model, whose widths are the model's."""
    text = llama(
        Settings({**_TEXT, **_inner(config, "text_config"), "model_type": "gemma3_text"}), from_scratch=from_scratch
    )
    tower = Settings(_inner(config, "vision_config"))
    seen = tower.number("hidden_size", default=768)
    projector = [
        Weight("mm_input_projection_weight", (seen, text.hidden), "experts"),
        *norm("mm_soft_emb_norm", seen),
    ]
    blocks = (*siglip(tower), single("model.multi_modal_projector", projector), *text.blocks)
    return replace(text, family="gemma3", blocks=blocks)


def _inner(config: Settings, name: str) -> dict[str, Any]:
    found = config.config.get(name)
    if not isinstance(found, dict | None):
        raise UsageError(f"config.json: {name} is not an object")
    return found or {}


def siglip(config: Settings) -> list[Block]:
    """SigLIP's image encoder (Zhai et al. 2023); `vision_use_head`: with the head that pools its output."""
    width = config.number("hidden_size", default=768)
    ffn = config.number("intermediate_size", default=3072)
    patch, channels = config.number("patch_size", default=16), config.number("num_channels", default=3)
    patches = (config.number("image_size", default=224) // patch) ** 2
    mlp = (*linear("mlp.fc1", ffn, width, bias=True), *linear("mlp.fc2", width, ffn, bias=True))
    embeddings = [
        Weight("patch_embedding.weight", (width, channels, patch, patch), "experts"),
        Weight("patch_embedding.bias", (width,), "vector"),
        *table("position_embedding", patches, width),
    ]
    layer = (
        *norm("layer_norm1", width, bias=True),
        *(weight for each in ("k", "v", "q", "out") for weight in linear(f"attn.{each}_proj", width, width, bias=True)),
        *norm("layer_norm2", width, bias=True),
        *mlp,
    )
    blocks = [
        single("vision_tower.embeddings", embeddings),
        Block("vision_tower.encoder.layers", config.number("num_hidden_layers", default=12), layer),
        single("vision_tower", norm("post_layernorm", width, bias=True)),
    ]
    if config.switch("vision_use_head", True):
        pooling = [
            Weight("probe", (1, 1, width), "experts"),
            Weight("attention.in_proj_weight", (3 * width, width), "experts"),
            Weight("attention.in_proj_bias", (3 * width,), "vector"),
            *linear("attention.out_proj", width, width, bias=True),
            *norm("layernorm", width, bias=True),
            *mlp,
        ]
        blocks.append(single("vision_tower.head", pooling))
    return blocks
