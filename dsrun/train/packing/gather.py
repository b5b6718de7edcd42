"""Forwards of a model that ZeRO-3 has sharded, before there is an engine that gathers its parameters.

Gathering is a collective. So that no rank waits for one that has given up, the ranks agree before each that all go on.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
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
        stack.callback(setattr, torch.nn.Module, "__getattr__", original)
        torch.nn.Module.__getattr__ = read
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
