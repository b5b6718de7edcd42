"""The parameter count: on the meta device in a child process where torch is installed, else from the shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, NamedTuple

from dsrun.errors import MissingError, ToolError, UsageError, nearest
from dsrun.findings.finding import Finding
from dsrun.messages import Message
from dsrun.models.families import family_of
from dsrun.models.folder import Found
from dsrun.zero.memory.model import causal, causal_layernorm, seq2seq, vision
from dsrun.zero.memory.model.architecture import Architecture, Weight
from dsrun.zero.memory.model.settings import Settings

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


TOLERANCE = 0.005
"""Share by which files may differ: some hold computed positions or leave tied tensors out."""


class Counted(NamedTuple):
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
    from dsrun.zero.memory.model.meta import generic, on_meta_device  # a process, which the shapes do without

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


def _as_loaded(found: Found, tensors: tuple[Weight, ...], *, from_scratch: bool) -> tuple[Weight, ...]:
    """T5 models whose config unties the embeddings get their own output embedding when they are loaded.

    (transformers 5 builds them tied, see `dsrun.zero.memory.model.seq2seq.t5`.)
    """
    family, tied = found.config["model_type"], found.config.get("tie_word_embeddings", True)
    if from_scratch or tied or not family_of(family).unties_when_loaded:
        return tensors
    table = max(tensors, key=lambda each: each.kind == "embedding")
    return (*tensors, Weight("lm_head.weight", table.shape, "head"))


def _not_trained(found: Found) -> Finding:
    return Finding(
        level="warning",
        code="plan.not-trained",
        message=Message(
            "dsrun train does not train {model_type} models: the plan is for a program of your own, and "
            "counts the activations of the part that reads or writes text",
            model_type=found.config["model_type"],
        ),
        where=str(found.folder),
    )


def _differs(found: Found, shapes: Architecture, tensors: tuple[Weight, ...]) -> Finding:
    counted = sum(each.elements for each in tensors)
    return Finding(
        level="warning",
        code="plan.count-differs",
        message=Message(
            "transformers builds {counted:,} parameters, dsrun's shapes give {parameters:,}; taking the former",
            counted=counted,
            parameters=shapes.parameters,
        ),
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
                message=Message(
                    "config.json says that the weights are quantised ({quantised}): the plan is for training "
                    "them in the precision asked for",
                    quantised=found.quantised,
                ),
                fix=Message("plan for, and train, the model that they were made from"),
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
            message=Message(
                "the safetensors files hold {total:,} elements, the config describes {counted:,}",
                total=total,
                counted=counted,
            ),
            fix=Message("check that config.json belongs to these weights"),
            where=str(found.folder),
        )
    ]
