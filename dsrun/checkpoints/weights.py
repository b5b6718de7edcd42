"""Safetensors headers, read without torch: which tensors a file holds, and in which shapes.

Format: eight bytes, the header's length as a little-endian number; the header, JSON with dtype, shape and data_offsets
by tensor name, and "__metadata__"; the data (https://github.com/huggingface/safetensors, "Format").
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsrun.errors import UsageError

# The format's own limit.
_LONGEST_HEADER = 100_000_000


@dataclass(frozen=True, kw_only=True)
class Weights:
    """What the weights of a folder are: how many tensors and parameters, parameters by dtype, empty tensors."""

    tensors: int
    parameters: int
    by_dtype: dict[str, int]
    empty: list[str]


def weights(folder: Path) -> Weights | None:
    """The safetensors files of `folder` together; None where there are none. Raises UsageError for a damaged one."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        return None
    by_dtype: dict[str, int] = {}
    empty: list[str] = []
    tensors = 0
    for file in files:
        for name, facts in header(file).items():
            count = math.prod(facts["shape"])
            tensors += 1
            by_dtype[facts["dtype"]] = by_dtype.get(facts["dtype"], 0) + count
            if not count:
                empty.append(name)
    return Weights(tensors=tensors, parameters=sum(by_dtype.values()), by_dtype=by_dtype, empty=empty)


def header(file: Path) -> dict[str, Any]:
    """The tensors of a safetensors file by name, each with `dtype` and `shape`. UsageError when it is damaged."""
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if length > _LONGEST_HEADER:
                raise ValueError
            content = json.loads(stream.read(length))
        content.pop("__metadata__", None)
        return {
            str(name): {"dtype": str(facts["dtype"]), "shape": [int(size) for size in facts["shape"]]}
            for name, facts in content.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{file} is no whole safetensors file") from error
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from error
