"""Where dsrun keeps what it can make again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from dsrun.system import variables


def cache_root(environ: Mapping[str, str] = os.environ) -> Path:
    """DSRUN_CACHE, else `dsrun` in the user's cache folder (XDG base directory specification)."""
    own = environ.get(variables.CACHE)
    if own:
        return Path(own).expanduser()
    return Path(environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "dsrun"
