"""The CPU level that all nodes of a cluster share, from the features their administrator gave them (build/cpu.toml)."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from dsrun.datafiles import data_folder
from dsrun.wheel.cpu import common_level

# Xeon Phi has AVX-512, but not the parts of it that the level x86-64-v4 asks for.
_LESS = "knl"


@cache
def _levels() -> Mapping[str, str]:
    """The level of each known word."""
    table: dict[str, Any] = tomllib.loads((data_folder("build") / "cpu.toml").read_text(encoding="utf-8"))
    return {word: level for level, words in table["features"].items() for word in words}


def node_level(features: Iterable[str]) -> str | None:
    """The highest level that one node's features vouch for; None when they say nothing of its processor.

    A level's own name ("x86-64-v3") says so itself. Features mean "at least": a node called `avx2` and `genoa` has what
    a Genoa has.
    """
    words = {word.strip().lower().replace("_", "-") for word in features}
    known = _levels()
    found = {known.get(word) or known.get(word.replace("-", "_")) for word in words} | (
        words & set(known.values())
    )
    levels = {level for level in found if level}
    if _LESS in words:
        return known[_LESS]
    return max(levels, default=None)


def cluster_level(nodes: Iterable[Iterable[str]]) -> str | None:
    """The level common to all nodes by their features; None when one of them says nothing, or there is none."""
    levels = [node_level(features) for features in nodes]
    known = [level for level in levels if level]
    return common_level(known) if known and len(known) == len(levels) else None
