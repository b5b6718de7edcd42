from __future__ import annotations

import gc
import sys

import pytest

from dsrun.launch.workers import zygote
from dsrun.system.imports import without_collections


@pytest.fixture
def thawed():
    """What a test has frozen is given back to the collector."""
    yield
    gc.unfreeze()


def test_no_collections_during_imports(thawed):
    """None while things are made, all that there is left alone afterwards, and then they go on."""
    with without_collections():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0


def test_collections_stay_off_if_they_were(thawed):
    gc.disable()
    try:
        with without_collections():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_zygote_imports_without_collections(tmp_path, monkeypatch, thawed):
    """A fifth of the time of its imports, and pages that its forks would copy."""
    (tmp_path / "sees_collector.py").write_text("import gc\nenabled = gc.isenabled()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    zygote._prepare(["sees_collector", "no_such_module"])
    assert not sys.modules.pop("sees_collector").enabled
    assert gc.get_freeze_count() > 0
