"""A pytest plugin: with --third N run of the exhaustive tests only those whose turn it is; three days have them all."""

from __future__ import annotations

from zlib import crc32

import pytest

PARTS = 3


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--third", type=int, metavar="N", help="of exhaustive tests only the Nth third, N modulo 3")


def is_due(nodeid: str, turn: int) -> bool:
    """Whether an exhaustive test belongs to the third `turn` modulo 3: for good, whatever tests come and go."""
    return crc32(nodeid.encode()) % PARTS == turn % PARTS


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    turn = config.getoption("third")
    if turn is None:
        return
    every = list(items)
    items[:] = [each for each in every if not each.get_closest_marker("exhaustive") or is_due(each.nodeid, turn)]
    kept = set(map(id, items))
    config.hook.pytest_deselected(items=[each for each in every if id(each) not in kept])
