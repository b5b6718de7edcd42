"""The tensors of safetensors files, read from the files' headers alone, without torch.

A file is eight bytes, the header's length as a little-endian number; the header, JSON with dtype, shape and
data_offsets by tensor name, and "__metadata__"; the data (https://github.com/huggingface/safetensors, "Format").
"""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

from dsrun.system.files import parse_json

_LONGEST_HEADER = 100_000_000
"""Bytes; the format's own limit."""
_MOST_ELEMENTS = 2**63 - 1
FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
"""The dtypes of weights; masks and positions, which some files keep too, are of others."""


def stored_tensors(folder: Path) -> dict[str, tuple[int, ...]] | None:
    """Names and shapes of all float tensors in the folder's safetensors files, from their headers alone.

    None without such files, or when a file named by the index is missing or damaged: the shapes are then unknown.
    """
    index = folder / "model.safetensors.index.json"
    found: dict[str, tuple[int, ...]] = {}
    try:
        names = set(parse_json(index.read_text())["weight_map"].values()) if index.is_file() else {"model.safetensors"}
        for name in sorted(names):
            tensors = read_header(folder / name).items()
            found |= {tensor: shape for tensor, (dtype, shape) in tensors if dtype in FLOATS}
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return None
    return found


def read_header(file: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Dtype and shape of each tensor in a safetensors file. Raises ValueError for what is none, and OSError."""
    found = file.stat()
    if not stat.S_ISREG(found.st_mode):  # a named pipe would keep its reader waiting
        raise ValueError(f"{file} is not a regular file")
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if length > min(_LONGEST_HEADER, found.st_size - 8):
            raise ValueError(f"{file}: header of {length} bytes")
        header = parse_json(opened.read(length))
    try:
        return {
            name: (_dtype_of(tensor["dtype"]), _shape_of(tensor["shape"]))
            for name, tensor in header.items()
            if name != "__metadata__"
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file}: not a header of tensors") from error


def _dtype_of(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _shape_of(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise TypeError(value)
    elements = 1
    for side in value:
        if type(side) is not int or not 0 <= side <= _MOST_ELEMENTS or (elements := elements * side) > _MOST_ELEMENTS:
            raise ValueError(f"a shape has the side {side}")
    return tuple(value)
