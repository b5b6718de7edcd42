from __future__ import annotations

import importlib

from transformers import conversion_mapping

from dsrun.launch.workers.agent import WORKER_IMPORTS


def test_names_of_weights_read_before_the_fork(monkeypatch):
    """What the zygote imports for ranks includes the table that each would otherwise make."""
    name = "dsrun.train.model.tables"
    assert name in WORKER_IMPORTS
    tables = importlib.import_module(name)
    monkeypatch.setattr(conversion_mapping, "_checkpoint_conversion_mapping_cache", None)
    importlib.reload(tables)
    assert conversion_mapping._checkpoint_conversion_mapping_cache is not None
