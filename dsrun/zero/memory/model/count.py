"""The parameter count: on the meta device in a child process where torch is installed, else from the shapes."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

from dsrun.errors import MissingError, ToolError, UsageError, nearest
from dsrun.findings import Finding
from dsrun.model_families import family_of
from dsrun.system.proc import capture
from dsrun.zero.memory.model import causal, causal_layernorm, seq2seq, vision
from dsrun.zero.memory.model.architecture import Architecture, Block, Stack, Weight
from dsrun.zero.memory.model.configs import Found, Settings

Describe = Callable[..., Architecture]

FAMILIES: dict[str, Describe] = {
    **dict.fromkeys(("t5", "mt5", "umt5"), seq2seq.t5),
    **dict.fromkeys(("bart", "mbart", "marian", "pegasus", "m2m_100"), seq2seq.bart),
    **dict.fromkeys(causal.FAMILIES, causal.llama),
    "deepseek_v3": causal.deepseek_v3,
    "gemma3": vision.gemma3,
    "gpt2": causal_layernorm.gpt2,
    "gpt_neox": causal_layernorm.gpt_neox,
    "gptj": causal_layernorm.gptj,
    "opt": causal_layernorm.opt,
    "bloom": causal_layernorm.bloom,
    "falcon": causal_layernorm.falcon,
}


def describe(config: Mapping[str, Any], *, from_scratch: bool = False) -> Architecture:
    """The architecture behind a config.json's content.

    `from_scratch`: the model is initialised from the config instead of loaded, which ties embeddings of some T5
    models that loading keeps apart. Raises MissingError for a family this module has no shapes of and UsageError
    for a config whose numbers make no model.
    """
    family = str(config.get("model_type"))
    make = FAMILIES.get(family)
    if make is None:
        near = nearest(family, FAMILIES)
        hint = f" (did you mean {near}?)" if near else ""
        raise MissingError(
            f"the parameters of model type {family!r} cannot be counted without torch and transformers{hint}",
            fix="install dsrun[train]",
        )
    return make(Settings(config), from_scratch=from_scratch)


def check_length(architecture: Architecture, flag: str, tokens: int) -> None:
    """Refuse a length that the model's position table does not reach."""
    if architecture.positions is not None and tokens > architecture.positions:
        raise UsageError(
            f"{flag} {tokens:,}: {architecture.family} has positions for {architecture.positions:,} tokens",
            fix=f"use at most {architecture.positions}",
        )


COUNTER = "dsrun.train.model.zero_auto"
SECONDS = 300.0
TOLERANCE = 0.005
"""Share by which files may differ: some hold computed positions or leave tied tensors out."""
RAISED = re.compile(r"[\w.]+(Error|Exception): \S")
"""The line of a traceback that names the exception."""
REASON = 300
"""Letters of it that are shown."""
LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
HEADS = ("num_attention_heads", "num_heads", "n_head", "n_heads")
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
PER_TOKEN = ("num_experts_per_tok", "moe_topk", "moe_top_k", "moe_k", "top_k_experts")


@dataclass(frozen=True, kw_only=True)
class Counted:
    """An architecture, how its parameters were counted, and notes on that."""

    architecture: Architecture
    how: str
    findings: tuple[Finding, ...] = ()
    trained: bool = True
    """Whether `dsrun train` trains models of its kind."""


def count(found: Found, *, meta: bool | None = None, from_scratch: bool = False) -> Counted:
    """The architecture of a model and its exact parameter count.

    `meta`: count on the meta device; None does so where torch and transformers are installed. Raises MissingError when
    neither way knows the model, ToolError when the child process fails on a model that needs it.
    """
    known = str(found.config["model_type"]) in FAMILIES
    shapes = describe(found.config, from_scratch=from_scratch) if known else None
    if meta is None:
        meta = find_spec("torch") is not None and find_spec("transformers") is not None
    if not meta:
        shapes = shapes or describe(found.config, from_scratch=from_scratch)
        return Counted(
            architecture=shapes, how="the architecture's shapes", findings=tuple(_against_files(found, shapes))
        )
    try:
        tensors, settings, trained = on_meta_device(found.folder)
    except ToolError as error:
        if shapes is None:
            raise
        finding = Finding(level="warning", code="plan.meta-count", message=str(error), where=str(found.folder))
        return Counted(architecture=shapes, how="the architecture's shapes", findings=(finding,))
    loaded = _as_loaded(found, tensors, from_scratch=from_scratch)
    findings: list[Finding] = []
    architecture = shapes
    if architecture is None or architecture.parameters != sum(each.elements for each in loaded):
        if architecture is not None:
            findings.append(_differs(found, architecture, loaded))
        architecture = generic(settings, loaded)
    findings += _against_files(found, architecture)
    findings += [] if trained else [_not_trained(found)]
    return Counted(
        architecture=architecture, how="transformers on the meta device", findings=tuple(findings), trained=trained
    )


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


def _as_loaded(found: Found, tensors: tuple[Weight, ...], *, from_scratch: bool) -> tuple[Weight, ...]:
    """T5 models whose config unties the embeddings get their own output embedding when they are loaded.

    (transformers 5 builds them tied, see `dsrun.zero.memory.model.seq2seq.t5`.)
    """
    family, tied = found.config["model_type"], found.config.get("tie_word_embeddings", True)
    if from_scratch or tied or not family_of(family).unties_when_loaded:
        return tensors
    table = max(tensors, key=lambda each: each.kind == "embedding")
    return (*tensors, Weight("lm_head.weight", table.shape, "head"))


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


def _not_trained(found: Found) -> Finding:
    return Finding(
        level="warning",
        code="plan.not-trained",
        message=f"dsrun train does not train {found.config['model_type']} models: the plan is for a program of your"
        " own, and counts the activations of the part that reads or writes text",
        where=str(found.folder),
    )


def _differs(found: Found, shapes: Architecture, tensors: tuple[Weight, ...]) -> Finding:
    counted = sum(each.elements for each in tensors)
    return Finding(
        level="warning",
        code="plan.count-differs",
        message=f"transformers builds {counted:,} parameters, dsrun's shapes give {shapes.parameters:,};"
        " taking the former",
        where=str(found.folder),
    )


def _against_files(found: Found, architecture: Architecture) -> list[Finding]:
    """Say so when the safetensors files beside the config hold another number of elements."""
    stored = found.stored
    if found.quantised:
        return [
            Finding(
                level="warning",
                code="plan.quantized",
                message=f"config.json says that the weights are quantised ({found.quantised}): the plan is for training"
                " them in the precision asked for",
                fix="plan for, and train, the model that they were made from",
                where=str(found.folder),
            )
        ]
    if stored is None:
        return []
    total, counted = sum(stored.values()), architecture.parameters
    # Computed positions (Marian, Pegasus) may have been left out of the files.
    if any(abs(total - each) <= TOLERANCE * counted for each in (counted, counted - architecture.frozen)):
        return []
    return [
        Finding(
            level="warning",
            code="plan.files-differ",
            message=f"the safetensors files hold {total:,} elements, the config describes {counted:,}",
            fix="check that config.json belongs to these weights",
            where=str(found.folder),
        )
    ]
