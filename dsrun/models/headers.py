"""The tensors of a model's safetensors files, read from the files' headers alone."""

from __future__ import annotations

import struct
from math import prod
from pathlib import Path

from dsrun.system.files import parse_json

LARGEST_HEADER = 100 * 2**20
"""Bytes; the safetensors format refuses longer headers."""


def stored_tensors(folder: Path) -> dict[str, int] | None:
    """Names and elements of all tensors in the folder's safetensors files, from their headers alone.

    None without such files, or when a file named by the index is missing or damaged: the count is then unknown.
    """
    index = folder / "model.safetensors.index.json"
    try:
        if index.is_file():
            files = sorted(set(parse_json(index.read_text())["weight_map"].values()))
        else:
            files = ["model.safetensors"]
        found: dict[str, int] = {}
        for file in files:
            found |= _header(folder / file)
    except (OSError, ValueError, RecursionError, KeyError, AttributeError, TypeError, struct.error):
        return None
    return found


def _header(file: Path) -> dict[str, int]:
    """A safetensors file starts with the header's length (8 bytes, little endian), then the header as JSON."""
    with file.open("rb") as opened:
        (length,) = struct.unpack("<Q", opened.read(8))
        if length > LARGEST_HEADER:
            raise ValueError(f"{file}: header of {length} bytes")
        header = parse_json(opened.read(length))
    sizes = {}
    for name, tensor in header.items():
        if name != "__metadata__":
            shape = tensor["shape"]
            if not all(type(side) is int and side >= 0 for side in shape):
                raise ValueError(f"{file}: {name} has the shape {shape}")
            sizes[name] = prod(shape)
    return sizes
