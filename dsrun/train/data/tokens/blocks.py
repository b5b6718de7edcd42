"""Documents joined into one run of tokens, from which blocks are cut; nothing is lost and nothing doubled.

The Transformers example script cuts within batches of 1000 documents and drops what is left of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dsrun.train.data.tokens.files import DTYPES, narrowest


def write_tokens(
    documents: Iterable[np.ndarray], path: Path, *, largest_id: int, limit: int | None = None
) -> int:
    """Write runs of ids one after another as a token file, at most `limit` tokens; returns how many.

    `largest_id` chooses the width: see `tokens.narrowest`.
    """
    dtype = DTYPES[narrowest(largest_id)]
    written = 0
    with path.open("wb") as file:
        for ids in documents:
            taken = ids if limit is None else ids[: limit - written]
            file.write(np.ascontiguousarray(taken, dtype=dtype).tobytes())
            written += len(taken)
            if limit is not None and written >= limit:
                break
    return written


def flat_chunks(table: Any, column: str) -> Iterator[np.ndarray]:
    """The values of an Arrow list column as arrays without copying: one per chunk, rows joined."""
    for chunk in table.column(column).chunks:
        # `flatten`, unlike `values`, respects the offsets of a slice and leaves out what null rows cover.
        yield chunk.flatten().to_numpy(zero_copy_only=False)
