"""The tensors of a model's safetensors files, read from the files' headers alone."""

from __future__ import annotations

import struct
from pathlib import Path

from dsrun.system.files import parse_json

LARGEST_HEADER = 100 * 2**20
"""Bytes; the safetensors format refuses longer headers."""


FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
"""The dtypes of weights; masks and positions, which some files keep too, are of others."""


def stored_tensors(folder: Path) -> dict[str, tuple[int, ...]] | None:
    """Names and shapes of all float tensors in the folder's safetensors files, from their headers alone.

    None without such files, or when a file named by the index is missing or damaged: the shapes are then unknown.
    """
    index = folder / "model.safetensors.index.json"
    try:
        if index.is_file():
            files = sorted(set(parse_json(index.read_text())["weight_map"].values()))
        else:
            files = ["model.safetensors"]
        found: dict[str, tuple[int, ...]] = {}
        for file in files:
            found |= _header(folder / file)
    except (OSError, ValueError, RecursionError, KeyError, AttributeError, TypeError, struct.error):
        return None
    return found


def _header(file: Path) -> dict[str, tuple[int, ...]]:
    """A safetensors file starts with the header's length (8 bytes, little endian), then the header as JSON."""
    with file.open("rb") as opened:
        (length,) = struct.unpack("<Q", opened.read(8))
        if length > LARGEST_HEADER:
            raise ValueError(f"{file}: header of {length} bytes")
        header = parse_json(opened.read(length))
    shapes = {}
    for name, tensor in header.items():
        if name != "__metadata__" and tensor["dtype"] in FLOATS:
            shape = tensor["shape"]
            if not all(type(side) is int and side >= 0 for side in shape):
                raise ValueError(f"{file}: {name} has the shape {shape}")
            shapes[name] = tuple(shape)
    return shapes
