"""What completion offers as names of GPUs."""

from __future__ import annotations

import re

from dsrun.cli.completion import gpu_names
from dsrun.hardware.gpu_facts import lookup, meanings


def test_completed_gpu_names_are_known():
    """Each is one word for the shell, and a name that dsrun reads."""
    names = gpu_names()
    assert {"a100", "h100", "v100", "a100-sxm4-80gb", "rtx-4090"} <= set(names)
    assert [name for name in names if not re.fullmatch(r"[a-z0-9-]+", name)] == []
    assert [name for name in names if not (lookup(name) or meanings(name))] == []
