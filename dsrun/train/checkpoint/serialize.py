"""How tensors become the bytes of a checkpoint's files: torch's zip files, safetensors, and what DeepSpeed writes."""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import torch

from dsrun.runs.checksum import ChecksumFile
from dsrun.train.base.distributed import my_rank
from dsrun.train.checkpoint.weight_files import DTYPES, ExportWeight, header, tensor_bytes

_OPTION = threading.Lock()
# Their save_pretrained calls the safetensors library under this name.
_CALLERS = ("transformers.modeling_utils", "peft.peft_model")
_CALLED = "safe_save_file"
_METADATA = {"format": "pt"}

NamedTensors = Mapping[str, torch.Tensor]


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


def write_safetensors(tensors: NamedTensors, file: ChecksumFile) -> None:
    """As safetensors' save_file, which lets no other thread run while it writes."""
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0]))
    file.write(header([ExportWeight(name, each.dtype, tuple(each.shape), each.detach) for name, each in ordered]))
    for _, each in ordered:
        file.write(tensor_bytes(each, each.dtype))


@contextmanager
def safetensors_through(write: Callable[[NamedTensors, Path], None], folder: Path) -> Iterator[None]:
    """Have save_pretrained give what it would write to safetensors files in `folder` to `write` instead."""

    def replace(stock: Callable[..., None]) -> Callable[..., None]:
        def save_file(tensors: NamedTensors, filename: str | Path, metadata: Any = None) -> None:
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


def has_whole_weights(engine: Any) -> bool:
    """Whether every rank holds all weights."""
    return not engine.zero_optimization_partition_weights() and engine.autotp_size() <= 1


def write_through(engine: Any, under_way: Callable[[], Any]) -> None:
    """Have a DeepSpeed engine write through the `CheckpointSave` under way, unless its JSON chose another engine.

    Between two files DeepSpeed's save_checkpoint meets in barriers: an exception on one rank would leave the others
    in the next one until the process group times out.
    """
    files = engine.checkpoint_engine
    if type(files).__name__ != "TorchCheckpointEngine" or "save" in vars(files):
        return
    stock, checkpoint, scripts = files.save, engine.save_checkpoint, engine._copy_recovery_script

    def ours(path: str) -> Any:
        save = under_way()
        return save if save and save.folder in (Path(path), *Path(path).parents) else None

    def write(state_dict: Any, path: str) -> None:
        save = ours(path)
        if save is None:
            stock(state_dict, path)
        elif files.zipfile_serialization:
            save.store(write_torch, state_dict, Path(path))
        else:
            save.write(lambda: stock(state_dict, path), Path(path))

    def write_scripts(folder: str) -> None:
        if save := ours(folder):
            save.write(lambda: scripts(folder))
        else:
            scripts(folder)

    @wraps(checkpoint)  # its caller looks at the parameters
    def write_checkpoint(save_dir: str, **options: Any) -> None:
        save = ours(save_dir)
        checkpoint(save_dir, **options, save_latest=save is None)
        if save and my_rank() == 0:
            latest = Path(save_dir, "latest")
            save.write(lambda: latest.write_text(f"global_step{engine.global_steps}"), latest)

    files.save, engine.save_checkpoint, engine._copy_recovery_script = write, write_checkpoint, write_scripts
