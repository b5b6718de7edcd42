"""Passes that depend on their batch alone, and leave all ranks gradients of the same parameters."""

from functools import partial
from typing import Any

import torch
from torch.nn.utils.stateless import _reparametrize_module


class _Together(torch.autograd.Function):
    """Parameters whose gradients come at once: 0 for those that had no part in the loss."""

    @staticmethod
    def forward(ctx: Any, *parameters: torch.Tensor) -> Any:
        return tuple(each.view_as(each) for each in parameters)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients


def keep_whole(model: Any, *, sharded: bool) -> None:
    """Have ZeRO treat as one what does not call the same modules each time: the experts of a layer, where they are
    modules of their own (DBRX, Switch) or some are an identity (LongCat), and layers that shift or convolve many tokens
    by a module and a single one without (RWKV, RecurrentGemma).

    Else ZeRO-3 fetches each when that is called, and ranks wait for ever or fail (deepspeed/utils/z3_leaf_module.py);
    ZeRO-1 and ZeRO-2 add up what gradients each rank has, as they come: those of different experts, or they abort
    (deepspeed/runtime/zero/stage_1_and_2.py).
    """
    from deepspeed.utils.z3_leaf_module import set_z3_leaf_module

    for name, module in list(model.named_modules()):
        above, _, last = name.rpartition(".")
        forward = type(module).forward
        listed = forward is torch.nn.ModuleList.forward
        parts = [each for each in module.children() if isinstance(each, torch.nn.Identity) or [*each.parameters()]]
        # JetMoE calls methods of its experts instead, and gradients of a leaf that is not called are lost.
        if last == "experts" and parts and (listed or forward.__code__.co_names != ("NotImplementedError",)):
            whole = model.get_submodule(above) if listed else module
        elif sharded and (hasattr(module, "time_shift") or hasattr(module, "conv_1d")):
            whole = module
        else:
            continue
        if sharded:
            set_z3_leaf_module(whole, True)
        else:
            whole.forward = partial(_with_all, whole, whole.forward)


def _with_all(module: Any, forward: Any, *inputs: Any, **named: Any) -> Any:
    trained = {name: each for name, each in module.named_parameters() if each.requires_grad}
    together = _Together.apply(*trained.values()) if trained and torch.is_grad_enabled() else trained.values()
    with _reparametrize_module(module, dict(zip(trained, together, strict=True))):
        return forward(*inputs, **named)


def forget_batches(model: Any) -> None:
    """Take back what batches leave in a model: with it training would depend on evaluations, and on a resume.

    NLLB-MoE's experts take as many tokens as the last evaluation had. BigBird turns to full attention at the first
    batch of short texts, for good, and draws weights for it that nothing uses.
    """
    for module in model.modules():
        if capacity := getattr(module, "expert_capacity", None):
            module.register_forward_pre_hook(lambda each, _, kept=capacity: setattr(each, "expert_capacity", kept))
        if getattr(module, "attention_type", "") == "block_sparse" and hasattr(module, "set_attention_type"):
            module.set_attention_type = partial(_set_attention, module.set_attention_type)
            module.register_forward_pre_hook(lambda each, _: each.set_attention_type("block_sparse"))
            return  # it sets those inside


def _set_attention(change: Any, kind: str) -> None:
    with torch.device("meta"):  # where nothing is drawn
        change(kind)
