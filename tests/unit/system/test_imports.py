from __future__ import annotations

import gc
import os
import subprocess
import sys

import pytest

from dsrun.launch.workers import zygote
from dsrun.launch.workers.agent import AGENT_IMPORTS, WORKER_IMPORTS
from dsrun.system.imports import without_collections, without_torchao


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


def test_cuda_of_driver_alone_is_seen(tmp_path, monkeypatch):
    """A mapped libcuda.so, which `import torch` brings along, is no reason not to fork; the open device is."""
    (tmp_path / "0").symlink_to("/dev/null")
    assert not zygote.cuda_is_initialized(tmp_path)
    (tmp_path / "7").symlink_to(zygote.DEVICE)
    assert zygote.cuda_is_initialized(tmp_path)
    assert zygote.cuda_is_initialized(tmp_path / "missing")


def test_cuda_that_torch_has_initialised_is_seen(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert zygote.cuda_is_initialized(tmp_path)


# What a zygote has imported, and whether a function of torchao that transformers imports is still the real one.
_WITHOUT_TORCHAO = f"""
import sys
from dsrun.launch.workers import zygote
print(zygote._prepare({[*AGENT_IMPORTS, *WORKER_IMPORTS]}), "torchao" in sys.modules)
from transformers.integrations import torchao
print(torchao.is_metadata_torchao({{}}), "torchao" in sys.modules)
"""


@pytest.mark.train
def test_zygote_imports_no_torchao():
    """Its import initialises CUDA, after which no rank could be forked; a rank imports it when it uses it."""
    pytest.importorskip("torchao")
    argv = [sys.executable, "-c", _WITHOUT_TORCHAO]
    done = subprocess.run(argv, capture_output=True, text=True, env=dict(os.environ), check=True)
    lines = done.stdout.splitlines()  # torchao prints lines of its own
    assert [line for line in lines if line in ("True False", "False True")] == ["True False", "False True"]


def test_late_module_is_removed_again():
    """What is imported afterwards is the real thing."""
    before = set(sys.modules)
    with without_torchao():
        pass
    assert set(sys.modules) == before
