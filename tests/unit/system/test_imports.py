from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import subprocess
import sys

import pytest

from dsrun.launch.workers import zygote
from dsrun.launch.workers.agent import AGENT_IMPORTS, WORKER_IMPORTS
from dsrun.system.imports import deferred, without_collections


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


# What a zygote has imported of `INITIALISING`, and whether what transformers and peft have taken from them is the real
# thing afterwards.
_PREPARED = f"""
import sys
from dsrun.launch.workers import zygote
print("forks", zygote._prepare({[*AGENT_IMPORTS, *WORKER_IMPORTS]}))
print("imported", [name for name in zygote.INITIALISING if name in sys.modules])
from peft.tuners.lora import bnb
from transformers.quantizers import quantizer_torchao
import bitsandbytes, torch
print("linear", bnb.bnb.nn.Linear4bit is bitsandbytes.nn.Linear4bit, hasattr(bnb, "Linear4bit"))
print("flat", quantizer_torchao.flatten_tensor_state_dict({{"a": torch.zeros(1)}})[1])
"""


@pytest.mark.train
def test_zygote_imports_nothing_that_initialises_cuda():
    """No rank could be forked from it then; a rank imports such a package when it uses it."""
    for package in zygote.INITIALISING:
        pytest.importorskip(package)
    argv = [sys.executable, "-c", _PREPARED]
    done = subprocess.run(argv, capture_output=True, text=True, env=dict(os.environ), check=True)
    told = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if " " in line)
    assert {name: told.get(name) for name in ("forks", "imported", "linear")} == {
        "forks": "True", "imported": "[]", "linear": "True True",
    }  # fmt: skip
    assert "flat" in told


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package `put_off` with a module of its own."""
    folder = tmp_path / "put_off"
    folder.mkdir()
    (folder / "__init__.py").write_text("from put_off.kinds import Kind\n")
    (folder / "kinds.py").write_text("class Kind:\n    pass\n\n\ndef double(value):\n    return 2 * value\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "put_off"]:
        del sys.modules[name]


def test_names_of_deferred_packages_are_looked_up_on_use(package):
    with deferred("put_off", "no_such_package"):
        import put_off
        from put_off.kinds import Kind, double

        assert hasattr(put_off.kinds, "Kind")
        assert importlib.util.find_spec("put_off") is not None
        assert importlib.util.find_spec("no_such_package") is None
    assert "put_off" not in sys.modules
    assert double(21) == 42
    real = sys.modules["put_off.kinds"].Kind
    assert isinstance(Kind(), Kind)
    assert issubclass(real, Kind)
    assert not isinstance(21, Kind)
    assert put_off.Kind is real


def test_packages_imported_before_are_left(package):
    put_off = importlib.import_module("put_off")
    with deferred("put_off"):
        assert importlib.import_module("put_off") is put_off
    assert sys.modules["put_off"] is put_off
