"""A model's own code, of --trust-remote-code: put where Python imports it from, by one process at a time.

transformers copies the files over what is there, and imports them right after. The ranks of a machine do so at the same
moment, and one would import what another has just emptied to write it again: a module without the class.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock
from transformers import dynamic_module_utils

LOCK = ".dsrun.lock"


@contextmanager
def one_at_a_time(trusted: bool) -> Iterator[None]:
    """Nobody else on this machine copies code in here; without `trusted` there is none to copy.

    Where nothing can be written there is no lock, and no need of one: the code is in its place, or transformers fails.
    """
    with ExitStack() as stack:
        if trusted:
            folder = Path(dynamic_module_utils.HF_MODULES_CACHE)
            # filelock raises NotImplementedError on a file system without flock(2).
            with suppress(OSError, NotImplementedError):
                folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(FileLock(folder / LOCK))
        yield


def reference_in(config: Any, auto_class: type) -> str | None:
    """Which class of the model's own code `auto_class` stands for, as its config says; None for one of transformers."""
    return (getattr(config, "auto_map", None) or {}).get(auto_class.__name__)


class OwnCode:
    """Loads the code alone, by the name that all of transformers' classes have for it."""

    @staticmethod
    def from_pretrained(name: str, *, reference: str, **options: Any) -> type:
        return dynamic_module_utils.get_class_from_dynamic_module(reference, name, **options)
