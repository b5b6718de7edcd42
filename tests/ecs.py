"""Lines of --log-format json, checked as a reader of the Elastic Common Schema would read them."""

from __future__ import annotations

import json

import pytest

REQUIRED = {
    "@timestamp": str,
    "log.level": str,
    "message": str,
    "ecs.version": str,
    "service.name": str,
    "event.kind": str,
    "event.category": list,
    "event.type": list,
    "event.action": str,
    "event.dataset": str,
    "host.name": str,
    "process.pid": int,
}


def parsed(line: str) -> dict:
    """One whole line."""
    assert line.count("\n") == 1
    assert line.endswith("\n")
    found = json.loads(line, parse_constant=pytest.fail)
    assert {name: type(found.get(name)) for name in REQUIRED} == REQUIRED
    return found
