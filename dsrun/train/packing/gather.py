"""Forwards of a model that ZeRO-3 has sharded, before there is an engine that gathers its parameters.

Gathering is a collective. So that no rank waits for one that has given up, the ranks agree before each that all go on.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch

from dsrun.train.base.distributed import all_ready


class OtherRankError(RuntimeError):
    """Another rank cannot go on; it knows why."""


@contextmanager
def gathered(model: Any) -> Iterator[None]:
    """Forwards in here gather the parameters that ZeRO-3 has sharded, module by module. Whatever one rank raises, all
    raise, and every parameter is sharded again then. On all ranks."""
    if not any(hasattr(parameter, "ds_id") for parameter in model.parameters()):
        yield
        return
    gathering = _Gathering()
    with ExitStack() as stack:
        stack.callback(gathering.close)
        for module in model.modules():
            if parameters := _needed(module):
                enter = partial(gathering.enter, parameters)
                stack.callback(module.register_forward_pre_hook(enter).remove)
                stack.callback(module.register_forward_hook(gathering.leave).remove)
        try:
            yield
        except Exception:
            gathering.agree(False)
            raise
        gathering.agree(True)


def _needed(module: Any) -> list[Any]:
    """The parameters that a module's own forward reads. Peft's layers read the weights of their adapters, and some that
    of the layer they wrap, without a call to the modules that hold them."""
    own = list(module.parameters(recurse=False))
    if hasattr(module, "base_layer") and hasattr(module, "get_base_layer"):
        own += [each for name, child in module.named_children() if name != "base_layer" for each in child.parameters()]
        own += module.get_base_layer().parameters(recurse=False)
    return own


class _Gathering:
    def __init__(self) -> None:
        # What is gathered now, the last one last: the module, and the context to leave.
        self._open: list[tuple[Any, Any]] = []
        self._given_up = False

    def enter(self, parameters: list[Any], module: Any, _: Any) -> None:
        from deepspeed.runtime.zero import GatheredParameters
        from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus

        sharded = [p for p in parameters if getattr(p, "ds_status", None) == ZeroParamStatus.NOT_AVAILABLE]
        context = ExitStack()
        if sharded:
            full = _out_of_memory(sharded)
            self.agree(full is None)
            if full is not None:
                raise full
            context.enter_context(GatheredParameters(sharded))
        self._open.append((module, context))

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
