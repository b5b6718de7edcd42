"""Demos made once for all tests that only read them."""

import pytest

from dsrun.demo.build_demo import materialise


@pytest.fixture(scope="session")
def t5(tmp_path_factory):
    return materialise("demo-t5", tmp_path_factory.mktemp("t5") / "demo")


@pytest.fixture(scope="session")
def llama(tmp_path_factory):
    pytest.importorskip("tokenizers")
    return materialise("demo-llama", tmp_path_factory.mktemp("llama") / "demo")


def pytest_collection_modifyitems(items):
    """Whatever reads all docstrings of the standard library, five CPU seconds, is left to `make test-all`."""
    for item in items:
        if {"llama", "docs"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.exhaustive)
