"""Whose folder the caches of a rendered script lie in. Run under the real bash."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from tests.unit.slurm.test_render_exit import training


def test_sbatch_script_cache_folder_is_private(shell):
    """Caches lie in a folder that nobody else can write to."""
    first = Path(shell.run(training(shell)).environment["TRITON_CACHE_DIR"]).parent
    assert first.is_dir()
    assert stat.S_IMODE(first.stat().st_mode) == 0o700


def test_sbatch_script_avoids_cache_folder_of_other_user(shell):
    """No cache is read from a folder of another user."""
    # A link that leads to nothing is owned by nobody as far as bash can tell, and mkdir does not replace it.
    (shell.tools / f"dsrun-{os.getuid()}").symlink_to("nowhere")
    cache = Path(shell.run(training(shell)).environment["TRITON_CACHE_DIR"])
    assert cache.parent.is_dir()
    assert cache.parent.name != f"dsrun-{os.getuid()}"
