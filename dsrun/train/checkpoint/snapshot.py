"""Copies of what is to be saved in host memory, from which a thread can write while training changes the originals; and
how tensors become the bytes of a checkpoint's files: torch's zip files, safetensors, and what DeepSpeed writes."""

import io
import pickle
import sys
import threading
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.storage import TypedStorage, UntypedStorage

from dsrun.runs.checksum import ChecksumFile
from dsrun.system.host import memory_available
from dsrun.train.base.distributed import my_rank
from dsrun.train.checkpoint.weight_files import DTYPES, ExportWeight, header, tensor_bytes

# Of the host memory that is left, the part that copies may take: training goes on beside them.
_SHARE_OF_MEMORY = 0.5
_ALIGNMENT = 64


@dataclass(frozen=True)
class StateSnapshot:
    """A copy of `state`, and the buffer that its tensors lie in."""

    state: Any
    buffer: np.ndarray


class SnapshotBuffers:
    """Takes copies into buffers that are kept from save to save, pinned where the originals are on a GPU: the pages of
    new ones cost more time than the copying. `share` processes of this machine do so at the same time."""

    def __init__(self, *, share: int = 1) -> None:
        self._share = share
        self._free: list[np.ndarray] = []

    def take(self, state: Any, *, live: Container[int] | None = None) -> StateSnapshot | None:
        """A copy of `state` as it is now, anything that torch.save takes; None where memory does not suffice. With
        `live`, storages whose _cdata are not in it belong to `state` alone, and stay where they are."""
        storages: dict[int, UntypedStorage] = {}
        shell = _shell(state, storages)
        filled = {k: each for k, each in storages.items() if each.device.type != "meta" and each.nbytes() > 0}
        wanted = {key: each for key, each in filled.items() if live is None or key in live}
        as_bytes = (torch.empty(0, dtype=torch.uint8, device=each.device).set_(each) for each in wanted.values())
        copied = self._copy(list(as_bytes))
        if copied is None:
            return None
        buffer, copies = copied
        storages |= {key: copy.untyped_storage() for key, copy in zip(wanted, copies, strict=True)}
        return StateSnapshot(_Unpickler(shell, storages).load(), buffer)

    def take_apart(self, tensors: Mapping[str, torch.Tensor]) -> StateSnapshot | None:
        """As `take`, but each tensor gets a storage of its own, though it be a view of a larger one as under ZeRO-1 and
        2; tied ones share it."""
        sources = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
        places = {name: (each.data_ptr(), each.nbytes) for name, each in sources.items()}
        distinct = {places[name]: each for name, each in sources.items() if each.nbytes}
        copied = self._copy([each.reshape(-1).view(torch.uint8) for each in distinct.values()])
        if copied is None:
            return None
        buffer, copies = copied
        found = dict(zip(distinct, copies, strict=True))
        state = {
            name: found[places[name]].view(each.dtype).view(each.shape) if each.nbytes else each.cpu()
            for name, each in sources.items()
        }
        return StateSnapshot(state, buffer)

    def _copy(self, sources: list[torch.Tensor]) -> tuple[np.ndarray, list[torch.Tensor]] | None:
        """Copies of vectors of bytes, and the buffer that they lie in, each in a storage of its own."""
        ends = list(accumulate(_aligned(each.nbytes) for each in sources))
        devices = {each.device for each in sources if each.device.type == "cuda"}
        buffer = self._buffer(ends[-1] if ends else 0, pinned=bool(devices))
        if buffer is None:
            return None
        targets = []
        for source, end in zip(sources, ends, strict=True):
            start = end - _aligned(source.nbytes)
            target = torch.frombuffer(buffer, dtype=torch.uint8, offset=start, count=source.nbytes)
            if source.device.type == "cpu":
                # memcpy(3), which writes past the caches: half the time of torch's copy, a third on busy cores.
                target.numpy()[:] = source.numpy()
            else:
                target.copy_(source, non_blocking=True)
            targets.append(target)
        for device in devices:
            torch.cuda.synchronize(device)
        return buffer, targets

    def give_back(self, snapshot: StateSnapshot) -> None:
        """Keep the buffer for the next save. Nothing uses the snapshot any more. May be called by any thread."""
        self._free.append(snapshot.buffer)

    def _buffer(self, size: int, *, pinned: bool) -> np.ndarray | None:
        """At least `size` bytes; None where there is no room for as many."""
        # Nothing but the sizes of a few lists changes from save to save.
        fitting = [number for number, each in enumerate(self._free) if size <= len(each) <= 2 * size + _ALIGNMENT]
        if fitting:
            return self._free.pop(min(fitting, key=lambda number: len(self._free[number])))
        if size > memory_available() / self._share * _SHARE_OF_MEMORY:
            return None
        try:
            # NumPy asks for huge pages, whose first use costs a fraction.
            return torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy() if pinned else np.empty(size, np.uint8)
        except (RuntimeError, MemoryError):
            return None


def _shell(state: Any, originals: dict[int, UntypedStorage]) -> io.BytesIO:
    """`state` pickled without the bytes of its tensors, as in a file of torch.save; their storages are added to
    `originals` under their _cdata."""

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: Any) -> Any:
            if isinstance(obj, TypedStorage):
                storage, dtype = obj._untyped_storage, obj.dtype
            elif isinstance(obj, UntypedStorage):
                storage, dtype = obj, None
            else:
                return None
            originals[storage._cdata] = storage
            return storage._cdata, dtype

    file = io.BytesIO()
    Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(state)
    file.seek(0)
    return file


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, storages: dict[int, UntypedStorage]) -> None:
        super().__init__(file)
        self._storages = storages

    def persistent_load(self, pid: Any) -> Any:
        key, dtype = pid
        storage = self._storages[key]
        return storage if dtype is None else TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


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


def write_through(engine: Any, under_way: Callable[[], Any]) -> None:
    """Have a DeepSpeed engine write through the `CheckpointSave` under way, unless its JSON chose another engine.

    Between two files DeepSpeed's save_checkpoint meets in barriers: an exception on one rank would leave the others
    in the next one until the process group times out."""
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
