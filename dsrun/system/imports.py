"""Heavy imports, made cheaper."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any


@contextmanager
def without_collections() -> Iterator[None]:
    """For imports: what they make stays, and looking through it again and again is a fifth of the time of importing
    torch, transformers and DeepSpeed. Later collections leave it alone, too: in forks, they would write to, and so
    copy, every page of it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


# From these transformers imports functions as soon as it is imported, wherever torchao is installed.
_OF_TORCHAO = (
    "torchao.prototype.safetensors.safetensors_support",
    "torchao.prototype.safetensors.safetensors_utils",
)


class _Late(ModuleType):
    """Stands for a module whose functions import it when they are first called."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*args: Any, **kwargs: Any) -> Any:
            return getattr(import_module(self.__name__), name)(*args, **kwargs)

        return call


@contextmanager
def without_torchao() -> Iterator[None]:
    """For imports of transformers in a process that is to be forked: torchao, whose own import initialises CUDA, is
    imported by who uses it."""
    stands = {name: _Late(name) for name in _OF_TORCHAO if name not in sys.modules}
    sys.modules.update(stands)
    try:
        yield
    finally:
        for name, stand in stands.items():
            if sys.modules.get(name) is stand:
                del sys.modules[name]
