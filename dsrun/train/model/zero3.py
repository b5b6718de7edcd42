"""ZeRO-3 as transformers has it: while its configuration is registered, every model is sharded as it is built; and
passes that depend on their batch alone, and leave all ranks gradients of the same parameters.

Before there is an engine that gathers parameters, forwards of such a model do so here (`gathered`): a collective. So
that no rank waits for one that has given up, the ranks agree before each that all go on."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch.nn.utils.stateless import _reparametrize_module
from transformers import PreTrainedModel, modeling_utils
from transformers.integrations import deepspeed as integration

from dsrun.train.base.distributed import all_gather_object, all_ready


@contextmanager
def replaced(owner: Any, **values: Any) -> Iterator[None]:
    """The attributes of a module, a class or an object with other values inside; those that it lacks are None then."""
    before = {name: getattr(owner, name, None) for name in values}
    try:
        for name, value in values.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


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
    leaves apart where they differ, and two that are left empty it takes for equal."""
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

    equal = replaced(modeling_utils, _tied_params_are_equal=equal_on_all_ranks)
    with equal, replaced(PreTrainedModel, _initialize_weights=initialise):
        yield


class OtherRankError(RuntimeError):
    """Another rank cannot go on; it knows why."""


@contextmanager
def gathered(model: Any) -> Iterator[None]:
    """Forwards in here gather the parameters that ZeRO-3 has sharded, module by module. Whatever one rank raises, all
    raise, and every parameter is sharded again then. On all ranks."""
    if not any(hasattr(parameter, "ds_id") for parameter in model.parameters()):
        yield
        return
    gathering, original = _Gathering(), torch.nn.Module.__getattr__

    def read(module: Any, name: str) -> Any:
        """Modules read parameters of others (Peft's layers, DBRX's experts), and their own uncalled (Gemma 3n's)."""
        if isinstance(found := original(module, name), torch.nn.Parameter):
            gathering.fetch([found])
        return found

    with ExitStack() as stack:
        stack.callback(gathering.close)
        for module in model.modules():
            stack.callback(module.register_forward_pre_hook(gathering.enter).remove)
            stack.callback(module.register_forward_hook(gathering.leave).remove)
        stack.enter_context(replaced(torch.nn.Module, __getattr__=read))
        try:
            yield
        except Exception:
            gathering.agree(False)
            raise
        gathering.agree(True)


class _Gathering:
    def __init__(self) -> None:
        # What is gathered now, the last one last: the module, and the context to leave.
        self._open: list[tuple[Any, Any]] = []
        self._given_up = False

    def enter(self, module: Any, _: Any) -> None:
        self._open.append((module, ExitStack()))
        self.fetch(module.parameters(recurse=False))

    def fetch(self, parameters: Iterable[Any]) -> None:
        """Gather those that are sharded, until the innermost module is left that is called now."""
        from deepspeed.runtime.zero import GatheredParameters
        from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus

        sharded = [p for p in parameters if getattr(p, "ds_status", None) == ZeroParamStatus.NOT_AVAILABLE]
        if sharded and self._open:
            full = _out_of_memory(sharded)
            self.agree(full is None)
            if full is not None:
                raise full
            self._open[-1][1].enter_context(GatheredParameters(sharded))

    def leave(self, module: Any, _: Any, __: Any) -> None:
        # A module that caught what another raised has not left that one.
        while self._open:
            last, context = self._open.pop()
            context.close()
            if last is module:
                return

    def close(self) -> None:
        while self._open:
            self._open.pop()[1].close()

    def agree(self, ready: bool) -> None:
        """Raises OtherRankError where another rank has given up; once this one has, nobody waits for it."""
        self._given_up = self._given_up or not all_ready(ready)
        if ready and self._given_up:
            raise OtherRankError("another rank failed")


def _out_of_memory(parameters: list[Any]) -> Exception | None:
    """What allocating room for the whole parameters raises, before other ranks wait for this one to gather them."""
    if not torch.cuda.is_available():
        return None
    try:
        torch.empty(sum(p.ds_numel * p.element_size() for p in parameters), dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        return error
    return None


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
    (deepspeed/runtime/zero/stage_1_and_2.py)."""
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
    batch of short texts, for good, and draws weights for it that nothing uses."""
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
