"""The tensors of safetensors files, read from the files' headers alone, without torch.

A file is eight bytes, the header's length as a little-endian number; the header, JSON with dtype, shape and
data_offsets by tensor name, and "__metadata__"; the data (https://github.com/huggingface/safetensors, "Format")."""

import os
from pathlib import Path
from typing import Any, NamedTuple

from dsrun.system.files import open_regular, parse_json

_LONGEST_HEADER = 100_000_000
"""Bytes; the format's own limit."""
_MOST_ELEMENTS = 2**63 - 1
_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
"""The dtypes of weights that train; masks and positions, which some files keep too, are of others."""


class StoredWeights(NamedTuple):
    """The shapes of all float tensors by name, and the dtype of matrices that are no floats, "" if there are none."""

    shapes: dict[str, tuple[int, ...]]
    packed: str = ""


def stored_weights(folder: Path) -> StoredWeights | None:
    """What the folder's safetensors files hold, from their headers alone.

    None without such files, or when a file named by the index is missing or damaged: the shapes are then unknown."""
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    try:
        for name in _file_names(folder):
            tensors |= read_header(folder / name)
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return None
    shapes = {name: shape for name, (dtype, shape) in tensors.items() if dtype in _FLOATS}
    others = [(dtype, shape) for name, (dtype, shape) in tensors.items() if name.endswith(".weight")]
    packed = next((dtype for dtype, shape in others if dtype not in _FLOATS and len(shape) > 1), "")
    return StoredWeights(shapes, packed)


def _file_names(folder: Path) -> list[str]:
    """As `PreTrainedModel.from_pretrained` chooses: the one file before those of an index."""
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").exists() or not index.is_file():
        return ["model.safetensors"]
    return sorted(set(parse_json(index.read_text())["weight_map"].values()))


def read_header(file: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Dtype and shape of each tensor in a safetensors file. Raises ValueError for what is none, and OSError."""
    with open_regular(file) as opened:
        length = int.from_bytes(opened.read(8), "little")
        if length > min(_LONGEST_HEADER, os.fstat(opened.fileno()).st_size - 8):
            raise ValueError(f"{file}: header of {length} bytes")
        header = parse_json(opened.read(length))
    try:
        return {name: _dtype_and_shape(tensor) for name, tensor in header.items() if name != "__metadata__"}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file}: not a header of tensors") from error


def _dtype_and_shape(tensor: Any) -> tuple[str, tuple[int, ...]]:
    dtype, shape = tensor["dtype"], tensor["shape"]
    if not isinstance(dtype, str) or not isinstance(shape, list):
        raise TypeError(tensor)
    elements = 1
    for side in shape:
        if type(side) is not int or not 0 <= side <= _MOST_ELEMENTS or (elements := elements * side) > _MOST_ELEMENTS:
            raise ValueError(f"a shape has the side {side}")
    return dtype, tuple(shape)
