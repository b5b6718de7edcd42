"""The training process, and `Trainer` for scripts of your own, which is loaded when it is asked for: a worker imports
this package before it has seen to its output."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsrun.train.script import Trainer

__all__ = ["Trainer"]


def __getattr__(name: str) -> Any:
    if name != "Trainer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dsrun.train.script import Trainer

    return Trainer
