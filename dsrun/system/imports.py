"""Heavy imports, made cheaper."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """For imports: what they make stays, and looking through it again and again is a fifth of the time of importing
    torch, transformers and DeepSpeed. Later collections leave it alone, too: in forks, they would write to, and so
    copy, every page of it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
