"""A model as transformers builds it on the meta device, in a child process: its tensors, and what follows from them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from dsrun.errors import ToolError
from dsrun.system.proc import capture
from dsrun.zero.memory.model.architecture import Architecture, Block, Stack, Weight
from dsrun.zero.memory.model.settings import Settings

COUNTER = "dsrun.train.model.zero_auto"
SECONDS = 300.0
RAISED = re.compile(r"[\w.]+(Error|Exception): \S")
"""The line of a traceback that names the exception."""
REASON = 300
"""Letters of it that are shown."""
LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
HEADS = ("num_attention_heads", "num_heads", "n_head", "n_heads")
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
PER_TOKEN = ("num_experts_per_tok", "moe_topk", "moe_top_k", "moe_k", "top_k_experts")


def on_meta_device(folder: Path) -> tuple[tuple[Weight, ...], dict[str, Any], bool]:
    """Every tensor of the model, its settings with transformers' defaults, and whether `dsrun train` trains its kind,
    from a child process that may load torch.

    Raises ToolError when it fails.
    """
    done = capture([sys.executable, "-m", COUNTER, str(folder)], seconds=SECONDS, changes={"HF_HUB_OFFLINE": "1"})
    if done.returncode != 0:
        raise ToolError(f"counting {folder} on the meta device failed: {_reason(done.stderr)}")
    output = json.loads(done.stdout.strip().splitlines()[-1])
    tensors = tuple(Weight(name, tuple(shape), kind) for name, shape, kind in output["tensors"])
    return tensors, output["config"], output["trained"]


def _reason(stderr: str) -> str:
    """The first line of the exception that ended a process: transformers' go on for several. One that ends in a colon
    is nothing without the next."""
    lines = stderr.strip().splitlines() or ["no output"]
    raised = [number for number, line in enumerate(lines) if RAISED.match(line)]
    if not raised:
        return lines[-1][:REASON]
    reason = lines[raised[-1]].partition(": ")[2]
    if reason.endswith(":"):
        reason = " ".join([reason, *(line.strip() for line in lines[raised[-1] + 1 :][:1])])
    return reason[:REASON]


def generic(config: Mapping[str, Any], tensors: tuple[Weight, ...]) -> Architecture:
    """An architecture of any decoder or encoder-decoder model: its tensors, and widths under their usual names.

    `config` holds every setting, those that the model's config.json leaves to their defaults too.
    """
    seq2seq = bool(config.get("is_encoder_decoder"))
    text = _part(config, "decoder")
    gated = any("gate" in each.name or "wi_1" in each.name for each in tensors)
    blocks = layered(tensors)
    numbered = sum(block.name[-1:].isdigit() for block in blocks)
    return Architecture(
        family=str(config["model_type"]), seq2seq=seq2seq, hidden=_width(text),
        vocabulary=text.number("vocab_size", "tgt_vocab_size"),
        tied=not any(each.kind == "head" for each in tensors), blocks=blocks, norm="rms",
        decoder=_stack(text, "decoder", numbered, gated=gated, cross=seq2seq),
        encoder=_stack(_part(config, "encoder"), "encoder", numbered, gated=gated) if seq2seq else None,
    )  # fmt: skip


def _part(config: Mapping[str, Any], side: str) -> Settings:
    """The settings of one side, or of the part that reads text. Where they differ by layer, the largest."""
    chosen = config
    for name in (side, "text_config"):
        inner = chosen.get(name)
        chosen = inner if isinstance(inner, dict) else chosen
    return Settings({name: _largest(value) for name, value in chosen.items()})


def _largest(value: Any) -> Any:
    counts = isinstance(value, list) and value and all(type(each) is int for each in value)
    return max(value) if counts else value


def _width(settings: Settings) -> int:
    return settings.number("hidden_size", "d_model", "n_embd")


def _stack(settings: Settings, side: str, numbered: int, *, gated: bool, cross: bool = False) -> Stack:
    """One side; `numbered` layers where the settings name no number of them."""
    width = _width(settings)
    # Where both sides have layers of their own number, the plain names are the encoder's (T5, BART).
    layers = (f"{side}_layers", f"num_{side}_layers", *LAYERS)
    heads = settings.number(f"{side}_attention_heads", *HEADS, default=1)
    size = settings.number("head_dim", "d_kv", default=max(1, width // heads))
    keys = settings.number("num_key_value_heads", default=heads)
    dense = settings.number(f"{side}_ffn_dim", "intermediate_size", "ffn_dim", "d_ff", "n_inner", default=4 * width)
    experts, per_token, active = _experts(settings, dense)
    return Stack(
        layers=settings.number(*layers, default=max(1, numbered)), heads=heads, queries=heads * size, keys=keys * size,
        ffn=active, gated=gated, norms=3 if cross else 2, cross=cross,
        experts=experts, experts_per_token=per_token,
    )  # fmt: skip


def _experts(settings: Settings, dense: int) -> tuple[int, int, int]:
    """Experts, those that a token is sent to, and the feed-forward width it goes through with the shared ones."""
    experts = settings.number(*EXPERTS, default=0, least=0)
    if not experts:
        return 0, 0, dense
    each = settings.number("moe_intermediate_size", "expert_ffn_hidden_size", default=dense)
    per_token = min(experts, settings.number(*PER_TOKEN, default=1))
    shared = settings.number("n_shared_experts", "num_shared_experts", default=0, least=0) * each
    shared += settings.number("shared_expert_intermediate_size", default=0, least=0)
    return experts, per_token, per_token * each + shared


def layered(tensors: tuple[Weight, ...]) -> tuple[Block, ...]:
    """Tensors in their order, cut into layers where the first number in their names changes."""

    def layer(weight: Weight) -> str:
        numbered = re.match(r"(.*?\.\d+)\.", weight.name)
        return numbered[1] if numbered else weight.name.rpartition(".")[0]

    return tuple(Block(name, 1, tuple(weights)) for name, weights in groupby(tensors, key=layer))
