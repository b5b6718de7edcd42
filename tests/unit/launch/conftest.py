from __future__ import annotations

import pytest

from dsrun.launch import follower, leader
from tests.unit.launch.town import NEVER, Town


@pytest.fixture
def town(monkeypatch):
    """Nodes that nobody takes for lost because the machine is busy; tests about silence say how long it may be."""
    for module in (follower, leader):
        monkeypatch.setattr(module, "SILENCE_S", NEVER)
    place = Town()
    yield place
    place.close()
