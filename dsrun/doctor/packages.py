"""The packages of the Python that trains: where they are and which versions, without importing any of them."""

from __future__ import annotations

import sys
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

from dsrun.system.host import VERSIONED, versions
from dsrun.wheel.target.toolchain import TorchFacts, facts_at

LOOKED_AT = (*VERSIONED, "nvidia-nccl-cu12", "nvidia-nccl-cu13")


class Packages:
    """Those of this Python. A recorded machine has others: `places` are folders by the packages' names, `numbers` their
    versions."""

    def __init__(self, places: dict[str, Path] | None = None, numbers: dict[str, str] | None = None) -> None:
        self._places = places
        self._numbers = numbers

    def folder(self, name: str) -> Path | None:
        """Where the top-level package `name` is; None where it is not installed."""
        if self._places is not None:
            return self._places.get(name)
        # Of a top-level name find_spec imports nothing.
        spec = find_spec(name)
        places = list(spec.submodule_search_locations or ()) if spec else []
        return Path(places[0]) if places else None

    @cached_property
    def versions(self) -> dict[str, str]:
        """Versions by name of those that are installed."""
        return versions(LOOKED_AT) if self._numbers is None else self._numbers

    @cached_property
    def torch(self) -> TorchFacts | None:
        """torch, by its file version.py; None where it is not installed, or does not say its version."""
        folder = self.folder("torch")
        return facts_at(folder, (sys.implementation.cache_tag or "").replace("cpython-", "cp")) if folder else None
