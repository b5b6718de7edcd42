"""Random weights that depend on the seed alone: not on the ZeRO stage, the device or the number of ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.initialization import guard_torch_init_functions


def initialise(model: Any, seed: int) -> None:
    """Draw the weights of `model` anew by its own rules, each module by a seed of its own.

    transformers draws them from one stream of numbers, which ZeRO-3 begins elsewhere, as it skips what torch draws
    while the model is built. A sharded model is gathered module by module, and drawn by rank 0 on its CPU.
    """
    with torch.no_grad(), guard_torch_init_functions():
        for name, module, owner in _children_first(model, "", model):
            _initialise(owner, module, _seed_of(seed, name))
    model.tie_weights()


def _children_first(module: nn.Module, name: str, owner: Any) -> Iterator[tuple[str, nn.Module, Any]]:
    """Every module below and including this one, with its name and the model whose rules it is drawn by."""
    owner = module if isinstance(module, PreTrainedModel) else owner
    for child_name, child in module.named_children():
        yield from _children_first(child, f"{name}.{child_name}", owner)
    yield name, module, owner


def _initialise(owner: Any, module: nn.Module, seed: int) -> None:
    # A module's rules may set the parameters of its children too.
    held = [module, *(child for child in module.children() if not isinstance(child, PreTrainedModel))]
    parameters = [each for part in held for each in part.parameters(recurse=False)]
    sharded = [each for each in parameters if hasattr(each, "ds_id")]
    with ExitStack() as stack:
        if sharded:
            import deepspeed

            stack.enter_context(deepspeed.zero.GatheredParameters(sharded, modifier_rank=0))
            if torch.distributed.get_rank() != 0:
                return
        whole = [each.data for each in parameters]
        for each in parameters:
            each.data = each.data.cpu()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            owner._init_weights(module)
        for each, before in zip(parameters, whole, strict=True):
            drawn, each.data = each.data, before
            before.copy_(drawn)


def _seed_of(seed: int, name: str) -> int:
    """A seed below 2**63 for the module of this name."""
    return int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8], "little") >> 1
