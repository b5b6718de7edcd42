"""Kept out of `make test`: only where there is an environment with a CUDA torch are these tests collected."""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("DSRUN_CUDA_PYTHON") else ["test_*.py"]
