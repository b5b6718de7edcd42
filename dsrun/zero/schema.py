"""The data of ds_schema.json: what DeepSpeed reads, block by block."""

from __future__ import annotations

import difflib
import json
import pathlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

Entry = dict[str, Any]
Path = tuple[str | int, ...]
"""A key of the JSON and the blocks that it is in."""


@dataclass(frozen=True)
class Block:
    """An object of the JSON.

    style "model": unknown keys are refused and "auto" is left out; "read": keys are looked up one by one and
    everything else is ignored. `null`: the block may be null.
    """

    path: str
    style: str
    null: bool
    keys: dict[str, Entry]

    @property
    def spellings(self) -> dict[str, str]:
        """Every name a key answers to (pydantic takes the field's name beside its alias) -> the key."""
        return {name: key for key, entry in self.keys.items() for name in (key, entry.get("name", key))}


@cache
def _content() -> dict[str, Any]:
    # Not importlib.resources: its import alone takes longer than reading the file.
    text = (pathlib.Path(__file__).with_name("ds_schema.json")).read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


@cache
def blocks() -> dict[str, Block]:
    """Every block by its path; the top level is the empty one."""
    return {path: Block(path, **entry) for path, entry in _content()["blocks"].items()}


def version() -> str:
    """The release of DeepSpeed that the data was taken from."""
    return str(_content()["deepspeed"])


def removed(block: str) -> tuple[str, ...]:
    """The keys of a block whose feature is gone: DeepSpeed refuses them."""
    return tuple(_content()["removed"].get(block, ()))


def optimizer_params() -> dict[str, list[str] | None]:
    """DeepSpeed's own optimizers, in lower case, with the keys of `params` (None: unknown)."""
    found: dict[str, list[str] | None] = _content()["optimizers"]["deepspeed"]
    return found


def torch_optimizers() -> dict[str, dict[str, bool]]:
    """torch.optim's optimizers: keyword -> whether it must be given."""
    found: dict[str, dict[str, bool]] = _content()["optimizers"]["torch"]
    return found


def schedulers() -> dict[str, dict[str, bool]]:
    """The schedulers of DeepSpeed and torch: keyword -> whether it must be given."""
    both = _content()["schedulers"]
    return {**both["torch"], **both["deepspeed"]}


def own_schedulers() -> tuple[str, ...]:
    """The schedulers of DeepSpeed itself."""
    return tuple(_content()["schedulers"]["deepspeed"])


@cache
def homes() -> dict[str, tuple[str, ...]]:
    """Key -> the paths of the blocks that have it."""
    found: dict[str, tuple[str, ...]] = {}
    for path, block in blocks().items():
        for key in block.keys:
            found[key] = (*found.get(key, ()), path)
    return found


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant, or None."""
    folded = {each.lower(): each for each in known}
    matches = difflib.get_close_matches(name.lower(), list(folded), n=1, cutoff=0.75)
    return folded[matches[0]] if matches else None
