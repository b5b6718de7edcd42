"""A webhook's server for each test that asks for it."""

import pytest

from tests.webhook import webhook


@pytest.fixture
def hook(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with webhook() as found:
        yield found
