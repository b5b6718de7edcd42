"""A pytest plugin: with --day N run of the exhaustive tests only those whose turn it is; five days have them all."""

from __future__ import annotations

from zlib import crc32

import pytest

PARTS = 5


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--day", type=int, metavar="N", help="of exhaustive tests only a fifth: those of day N modulo 5")


def is_due(nodeid: str, turn: int) -> bool:
    """Whether an exhaustive test belongs to the part `turn` modulo PARTS: for good, whatever tests come and go."""
    return crc32(nodeid.encode()) % PARTS == turn % PARTS


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    turn = config.getoption("day")
    if turn is None:
        return
    every = list(items)
    items[:] = [each for each in every if not each.get_closest_marker("exhaustive") or is_due(each.nodeid, turn)]
    kept = set(map(id, items))
    config.hook.pytest_deselected(items=[each for each in every if id(each) not in kept])
