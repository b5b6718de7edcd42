"""ZeRO-3 as transformers has it: while its configuration is registered, every model is sharded as it is built."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel, modeling_utils
from transformers.integrations import deepspeed as integration

from dsrun.train.base.distributed import all_gather_object


def is_sharding() -> bool:
    """Whether a model that is built now is sharded."""
    return bool(integration.is_deepspeed_zero3_enabled())


@contextmanager
def outside_zero3() -> Iterator[None]:
    """Models built inside are whole, on this rank alone."""
    reference = integration._hf_deepspeed_config_weak_ref
    config = reference() if reference else None
    integration.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        if config is not None:
            integration.set_hf_deepspeed_config(config)


@contextmanager
def whole_shapes(parameters: Iterable[Any]) -> Iterator[None]:
    """Let those that are sharded show the shapes of the whole, without its numbers."""
    shards = [(each, each.data) for each in parameters if hasattr(each, "ds_id") and each.data.shape != each.ds_shape]
    for each, data in shards:
        # One number, repeated: it takes no memory, and torch refuses to write to it.
        each.data = data.new_zeros(1).expand(each.ds_shape)
    try:
        yield
    finally:
        for each, data in shards:
            each.data = data


@contextmanager
def loading() -> Iterator[None]:
    """Let models be loaded inside whose rules unpack the shape of a weight (Pegasus, FSMT, RoFormer, RWKV, xLSTM), or
    whose files hold an output embedding apart from the input's though the config ties them (T5 v1.1, FLAN-T5, mT5).

    After loading transformers applies the rules by which weights are drawn to every module, for the sake of computed
    buffers, and keeps the weights that are loaded. Of those ZeRO-3 has left the shape `(0,)`. Two weights to be tied it
    leaves apart where they differ, and two that are left empty it takes for equal.
    """
    original = PreTrainedModel._initialize_weights
    # A version that has no such function compares nothing, and reads none.
    are_equal = getattr(modeling_utils, "_tied_params_are_equal", torch.equal)

    def equal_on_all_ranks(one: Any, other: Any) -> bool:
        if not (hasattr(one, "ds_id") and hasattr(other, "ds_id")):
            return bool(are_equal(one, other))
        mine = one.ds_shape == other.ds_shape and torch.equal(one.ds_tensor, other.ds_tensor)
        return all(all_gather_object(mine))

    def initialise(model: Any, module: Any, is_custom_code: bool = False) -> None:
        # Code that comes with a model may write without looking at whether the weight is loaded.
        with whole_shapes([] if is_custom_code else module.parameters()):
            original(model, module, is_custom_code)

    PreTrainedModel._initialize_weights = initialise
    modeling_utils._tied_params_are_equal = equal_on_all_ranks
    try:
        yield
    finally:
        PreTrainedModel._initialize_weights = original
        modeling_utils._tied_params_are_equal = are_equal
