from __future__ import annotations

import pytest

from dsrun.launch.coordinator import rendezvous, server
from tests.unit.launch.town import NEVER, Town


@pytest.fixture
def town(monkeypatch):
    """Nodes that nobody takes for lost because the machine is busy; tests about silence say how long it may be."""
    for module in (rendezvous, server):
        monkeypatch.setattr(module, "PEER_TIMEOUT_S", NEVER)
    place = Town()
    yield place
    place.close()
