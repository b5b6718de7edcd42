"""Random weights that depend on the seed alone: not on the ZeRO stage or the number of ranks.

A GPU draws other numbers than a CPU, in a hundredth of the time."""

import hashlib
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel, initialization
from transformers.integrations import deepspeed as integration

from dsrun.train.model.zero3 import replaced, whole_shapes

RANDOM = (
    "uniform_", "normal_", "xavier_uniform_", "xavier_normal_", "kaiming_uniform_", "kaiming_normal_", "trunc_normal_",
    "orthogonal_", "sparse_",
)  # fmt: skip
"""Those of torch.nn.init that draw."""

NamedModule = tuple[str, nn.Module, Any]
"""A module with its name and the model whose rules it is drawn by."""


@contextmanager
def undrawn() -> Iterator[None]:
    """Models built inside hold no drawn numbers yet: `initialise` draws them. Each weight keeps what its constructor
    would have drawn it by, as the rules of some models leave weights out (the Conv1D of OpenAI GPT)."""

    def nothing(*_: Any, **__: Any) -> None: ...

    deferred = {name: partial(_defer, getattr(nn.init, name)) for name in RANDOM}
    # Under ZeRO-3 transformers skips the draws of constructors, and draws all weights after them.
    kept, later = replaced(initialization, no_init_weights=nullcontext), {"initialize_weights_zero3": nothing}
    rules = replaced(PreTrainedModel, init_weights=nothing)
    with replaced(nn.init, **deferred), kept, replaced(integration, **later), rules:
        yield


def initialise(model: Any, seed: int, device: str = "cpu") -> None:
    """Draw the weights of `model` by its own rules on this kind of device, each module by a seed of its own.

    transformers draws them from one stream of numbers, which ZeRO-3 begins elsewhere, as it skips what torch draws
    while the model is built. A sharded model is gathered part by part, and drawn by rank 0."""
    model.tie_weights()
    _draw(model, seed, device, lambda _: True)
    model.tie_weights()


def draw(model: Any, seed: int, *, only: Collection[str], device: str = "cpu") -> None:
    """Draw these weights of a loaded model as `initialise` would; transformers has marked all others as loaded."""
    for name, each in model.named_parameters():
        if name in only:
            each._deferred = partial(_draw_plainly, is_bias=name.endswith("bias"))
    _draw(model, seed, device, lambda name: any(each.startswith(f"{name}.".lstrip(".")) for each in only))


def leave_undrawn(model: Any) -> None:
    """Compute the buffers of a model that was built `undrawn` for weights that come from elsewhere."""
    for each in model.parameters():
        each._is_hf_initialized = True
    _forget_draws(model)
    model.initialize_weights()
    model.tie_weights()


def _draw(model: Any, seed: int, device: str, is_wanted: Callable[[str], bool]) -> None:
    place = torch.device("cuda", torch.cuda.current_device()) if device == "cuda" else torch.device("cpu")
    forked = torch.random.fork_rng(devices=[place] if device == "cuda" else [])
    with torch.no_grad(), initialization.guard_torch_init_functions(), forked:
        for modules, parameters in _parts(model, "", model):
            wanted = [each for each in modules if is_wanted(each[0])]
            if wanted:
                _draw_part(wanted, parameters, seed, place)
    _forget_draws(model)
    if device == "cuda":
        torch.cuda.empty_cache()  # of which training has another use


def _parts(module: nn.Module, name: str, owner: Any) -> Iterator[tuple[list[NamedModule], list[nn.Parameter]]]:
    """The modules in the order in which to draw them, children first, with all parameters that their rules may set:
    layer by layer, then the modules around them, whose rules may set those of their children too."""
    owner = module if isinstance(module, PreTrainedModel) else owner
    inside = list(_children_first(module, name, owner))
    if not any(isinstance(each, PreTrainedModel | nn.ModuleList) for _, each, _ in inside):
        yield inside, list(module.parameters())
        return
    for child_name, child in module.named_children():
        yield from _parts(child, f"{name}.{child_name}", owner)
    held = [module, *(child for child in module.children() if not isinstance(child, PreTrainedModel))]
    yield [(name, module, owner)], list(dict.fromkeys(each for part in held for each in part.parameters(recurse=False)))


def _children_first(module: nn.Module, name: str, owner: Any) -> Iterator[NamedModule]:
    owner = module if isinstance(module, PreTrainedModel) else owner
    for child_name, child in module.named_children():
        yield from _children_first(child, f"{name}.{child_name}", owner)
    yield name, module, owner


def _draw_part(modules: list[NamedModule], parameters: list[nn.Parameter], seed: int, place: torch.device) -> None:
    loaded = [each for each in parameters if getattr(each, "_is_hf_initialized", False)]
    drawn = [each for each in parameters if not getattr(each, "_is_hf_initialized", False)]
    sharded = [each for each in drawn if hasattr(each, "ds_id")]
    with ExitStack() as stack:
        if sharded:
            import deepspeed

            stack.enter_context(deepspeed.zero.GatheredParameters(sharded, modifier_rank=0))
            if torch.distributed.get_rank() != 0:
                return
        stack.enter_context(whole_shapes(loaded))
        stack.enter_context(_in_fp32_on(place, drawn))
        for name, module, owner in modules:
            digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
            torch.manual_seed(int.from_bytes(digest[:8], "little") >> 1)  # below 2**63
            _apply_rules(owner, module)


@contextmanager
def _in_fp32_on(place: torch.device, parameters: list[nn.Parameter]) -> Iterator[None]:
    """Move them there, and back. ZeRO-3 may hold them in bf16, and numbers drawn in bf16 are others."""
    before = [each.data for each in parameters]
    for each, data in zip(parameters, before, strict=True):
        each.data = data.to(place, torch.float32 if data.is_floating_point() else data.dtype)
    try:
        yield
    finally:
        for each, data in zip(parameters, before, strict=True):
            if each.data is not data:
                data.copy_(each.data)
                each.data = data


def _apply_rules(owner: Any, module: nn.Module) -> None:
    deferred = [each for each in module.parameters(recurse=False) if hasattr(each, "_deferred")]
    for each in deferred:
        each.data.view(-1)[[0, -1]] = torch.nan
    owner._init_weights(module)
    untouched = [each for each in deferred if each.data.view(-1)[[0, -1]].isnan().all()]
    if untouched:
        for each in untouched:
            each._deferred(each)
        owner._init_weights(module)


def _defer(function: Callable[..., Any], tensor: torch.Tensor, *arguments: Any, **named: Any) -> torch.Tensor:
    tensor._deferred = lambda each: function(each, *arguments, **named)
    return tensor


def _forget_draws(model: Any) -> None:
    """A function on a parameter could not be pickled, as a model is that goes to another process."""
    for each in model.parameters():
        each.__dict__.pop("_deferred", None)


def _draw_plainly(parameter: nn.Parameter, *, is_bias: bool) -> None:
    """For a weight that the model has no rule for."""
    if getattr(parameter, "ds_shape", parameter.shape)[1:]:
        nn.init.normal_(parameter, std=0.02)
    else:
        nn.init.constant_(parameter, 0.0 if is_bias else 1.0)
