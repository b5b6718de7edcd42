"""How tensors become the bytes of a checkpoint's files: torch's zip files, and safetensors."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from dsrun.runs.checksum import ChecksumFile
from dsrun.train.checkpoint.weight_files import DTYPES, Weight, header, tensor_bytes

_OPTION = threading.Lock()
# Their save_pretrained calls the safetensors library under this name.
_CALLERS = ("transformers.modeling_utils", "peft.peft_model")
_CALLED = "safe_save_file"
_METADATA = {"format": "pt"}

Tensors = Mapping[str, torch.Tensor]


def write_torch(state: Any, file: ChecksumFile) -> None:
    """As torch.save, but without the CRC-32 of each tensor, which torch.load never compares: that of the file replaces
    them, for the same time."""
    with _OPTION:
        before = torch.serialization.get_crc32_options()
        torch.serialization.set_crc32_options(False)
        try:
            torch.save(state, file)
        finally:
            torch.serialization.set_crc32_options(before)


def write_safetensors(tensors: Tensors, file: ChecksumFile) -> None:
    """As safetensors' save_file, which lets no other thread run while it writes."""
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0]))
    file.write(header([Weight(name, each.dtype, tuple(each.shape), each.detach) for name, each in ordered]))
    for _, each in ordered:
        file.write(tensor_bytes(each, each.dtype))


@contextmanager
def safetensors_through(write: Callable[[Tensors, Path], None], folder: Path) -> Iterator[None]:
    """Have save_pretrained give what it would write to safetensors files in `folder` to `write` instead."""

    def replace(stock: Callable[..., None]) -> Callable[..., None]:
        def save_file(tensors: Tensors, filename: str | Path, metadata: Any = None) -> None:
            path = Path(filename)
            plain = (torch.Tensor, torch.nn.Parameter)
            known = all(type(each) in plain and each.dtype in DTYPES for each in tensors.values())
            if path.parent == folder and known and metadata == _METADATA:
                write(tensors, path)
            else:
                stock(tensors, filename, metadata)

        return save_file

    callers = [sys.modules[name] for name in _CALLERS if hasattr(sys.modules.get(name), _CALLED)]
    stocks = [getattr(caller, _CALLED) for caller in callers]
    for caller, stock in zip(callers, stocks, strict=True):
        setattr(caller, _CALLED, replace(stock))
    try:
        yield
    finally:
        for caller, stock in zip(callers, stocks, strict=True):
            setattr(caller, _CALLED, stock)
