from __future__ import annotations

import pytest

from dsrun.launch.coordinator import client, server
from tests.unit.launch.local_cluster import NEVER, LocalCluster


@pytest.fixture
def cluster(monkeypatch):
    """Nodes that nobody takes for lost because the machine is busy; tests about silence say how long it may be."""
    for module in (client, server):
        monkeypatch.setattr(module, "PEER_TIMEOUT_S", NEVER)
    place = LocalCluster()
    yield place
    place.close()
