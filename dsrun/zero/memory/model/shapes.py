"""From a config.json to the model's Architecture, without torch: every parameter tensor, tied ones once."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any

from dsrun.errors import MissingError, UsageError
from dsrun.zero.memory.model import causal, seq2seq
from dsrun.zero.memory.model.architecture import Architecture
from dsrun.zero.memory.model.reading import Settings

Describe = Callable[..., Architecture]

FAMILIES: dict[str, Describe] = {
    **dict.fromkeys(("t5", "mt5", "umt5"), seq2seq.t5),
    **dict.fromkeys(("bart", "mbart", "marian", "pegasus", "m2m_100"), seq2seq.bart),
    **dict.fromkeys(causal.FAMILIES, causal.llama),
    "gpt2": causal.gpt2,
    "gpt_neox": causal.gpt_neox,
    "opt": causal.opt,
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
        near = difflib.get_close_matches(family, FAMILIES, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
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
