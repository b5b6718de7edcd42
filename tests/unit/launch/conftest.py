from __future__ import annotations

import pytest

from tests.unit.launch.town import Town


@pytest.fixture
def town():
    place = Town()
    yield place
    place.close()
