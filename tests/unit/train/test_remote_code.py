"""Several ranks import from the folder to which --trust-remote-code copies code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from filelock import FileLock, Timeout
from transformers import dynamic_module_utils

from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.train.model import load as models
from dsrun.train.model.build_model import build
from dsrun.train.model.load import LOCK, one_at_a_time
from tests.integration.poison import poisoned_model


@pytest.mark.parametrize("from_scratch", [False, True])
def test_remote_code_copied_by_one_process_at_a_time(from_scratch, tmp_path, monkeypatch):
    """The model itself is loaded by all ranks together, and then finds it in its place."""
    folder = tmp_path / "modules"
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(folder))
    monkeypatch.setattr(sys, "path", [*sys.path])
    copied = []

    def copyfile(source, target):
        with pytest.raises(Timeout), FileLock(folder / LOCK, timeout=0):
            pass
        copied.append(target.name)
        target.write_bytes(Path(source).read_bytes())

    monkeypatch.setattr(dynamic_module_utils.shutil, "copyfile", copyfile)
    spec = TrainSpec(model=poisoned_model(tmp_path / "model"), trust_remote_code=True, from_scratch=from_scratch)
    config = models.load_config(spec)
    assert type(build(spec, config, "causal-lm")).__name__ == "PoisonedLlama"
    assert copied == ["poison.py"]
    with FileLock(folder / LOCK, timeout=0):
        pass


def test_remote_code_without_writable_cache(tmp_path, monkeypatch):
    """Where nothing can be written, no rank waits for the lock."""
    (tmp_path / "file").touch()
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "file" / "modules"))
    with one_at_a_time(True):
        pass
