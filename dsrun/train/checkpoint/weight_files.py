"""Reads and writes safetensors files one tensor at a time.

The library's own save_file wants all tensors of a file at once and copies each to bytes; here no more than one tensor
is in memory. The format (github.com/huggingface/safetensors, README "Format"): the header's length as 8 little-endian
bytes; a JSON header with dtype, shape and byte range of each tensor, filled up with spaces; the tensors' bytes without
gaps."""

import hashlib
import json
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import PrefixChange, WeightConverter, apply_converters, revert_weight_conversion

from dsrun.datafiles import toml_beside
from dsrun.errors import UsageError
from dsrun.runs.records import write_json_atomic
from dsrun.train.base.refusals import refusal

INDEX_SUFFIX = ".index.json"

_NAMES = toml_beside(__file__, "checkpoint.toml")["safetensors_dtypes"]
DTYPES: dict[torch.dtype, str] = {getattr(torch, name): short for name, short in _NAMES.items()}
# A header that starts a multiple of 8 bytes before the tensors keeps all of them aligned.
_ALIGNMENT = 8


@dataclass(frozen=True)
class ExportWeight:
    """A tensor to write: `read` yields it, in any floating-point dtype, when its turn has come."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    read: Callable[[], torch.Tensor]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read_weights(file: Path) -> list[ExportWeight]:
    """The tensors of a safetensors file, each read when it is asked for. Raises UsageError for a file that is none."""

    def reader(name: str) -> Callable[[], torch.Tensor]:
        def read() -> torch.Tensor:
            with safe_open(file, framework="pt") as opened:
                return opened.get_tensor(name)

        return read

    known = {text: dtype for dtype, text in DTYPES.items()}
    weights: list[ExportWeight] = []
    try:
        with safe_open(file, framework="pt") as opened:
            for name in list(opened.keys()):
                part = opened.get_slice(name)
                if part.get_dtype() not in known:
                    raise refusal("weights.dtype", file=file, dtype=part.get_dtype())
                weights.append(ExportWeight(name, known[part.get_dtype()], tuple(part.get_shape()), reader(name)))
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{file} cannot be read: {str(error).splitlines()[0]}") from error
    return weights


def stored_weights(folder: Path, pattern: str = "*.safetensors") -> list[ExportWeight]:
    """The tensors of the safetensors files that match, tensors without elements included. Raises UsageError for a file
    that is none."""
    return [weight for file in sorted(folder.glob(pattern)) for weight in read_weights(file)]


def in_shards(weights: Sequence[ExportWeight], limit: int) -> list[list[ExportWeight]]:
    """`weights` in runs of at most `limit` bytes, in their order; one that is larger has a shard of its own."""
    shards: list[list[ExportWeight]] = []
    room = 0
    for weight in weights:
        if not shards or weight.nbytes > room:
            shards.append([])
            room = limit
        shards[-1].append(weight)
        room -= weight.nbytes
    return shards


def write_weights(
    weights: Sequence[ExportWeight], folder: Path, *, stem: str = "model", limit: int, beat: Callable[[], None]
) -> dict[str, str]:
    """Write `weights` to `folder` under the names that from_pretrained looks for: one file, or shards of at most
    `limit` bytes and their index. Returns the SHA-256 of each file's contents as they were written, by file name."""
    shards = in_shards(weights, limit)
    if len(shards) == 1:
        name = f"{stem}.safetensors"
        return {name: write_file(folder / name, shards[0], beat=beat)}
    hashes: dict[str, str] = {}
    places: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = f"{stem}-{number:05d}-of-{len(shards):05d}.safetensors"
        hashes[name] = write_file(folder / name, shard, beat=beat)
        places |= dict.fromkeys((weight.name for weight in shard), name)
    total = sum(weight.nbytes for weight in weights)
    index: Mapping[str, Any] = {"metadata": {"total_size": total}, "weight_map": places}
    write_json_atomic(folder / f"{stem}.safetensors{INDEX_SUFFIX}", index)
    return hashes


def write_file(path: Path, weights: Sequence[ExportWeight], *, beat: Callable[[], None] = lambda: None) -> str:
    """Write one file; returns the SHA-256 of what was written. Raises ToolError for a tensor of another shape than
    announced, and for one without elements: what ZeRO-3 leaves where a weight was not gathered."""
    # Wide types first: each tensor then starts at a multiple of its item size.
    ordered = sorted(weights, key=lambda weight: -weight.dtype.itemsize)
    start = header(ordered)
    digest = hashlib.sha256(start)
    with path.open("wb") as file:
        file.write(start)
        for weight in ordered:
            data = _bytes(weight)
            file.write(data)
            digest.update(data)
            del data
            beat()
        # Before the folder is renamed into its place: the name may reach the disk before the bytes do.
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def header(weights: Sequence[ExportWeight]) -> bytes:
    """The bytes of a safetensors file before those of `weights`, which follow in this order."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for weight in weights:
        end = start + weight.nbytes
        kind, shape = DTYPES[weight.dtype], list(weight.shape)
        entries[weight.name] = {"dtype": kind, "shape": shape, "data_offsets": [start, end]}
        start = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _bytes(weight: ExportWeight) -> memoryview:
    tensor = weight.read()
    if tuple(tensor.shape) != weight.shape or tensor.numel() == 0:
        raise refusal("weights.placeholder", name=weight.name, shape=list(tensor.shape), wanted=list(weight.shape))
    return tensor_bytes(tensor, weight.dtype)


def tensor_bytes(tensor: torch.Tensor, dtype: torch.dtype) -> memoryview:
    """The bytes of `tensor` in `dtype`; without a copy where it is so already, on the CPU and contiguous."""
    flat = tensor.detach().to("cpu", dtype).contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy())


def as_in_files(weights: Sequence[ExportWeight], model: Any, known: Collection[str] = ()) -> list[ExportWeight]:
    """What a save of `model`, which has no weights itself, would write of `weights`. Nothing changes where `known`, the
    names in the base model's files, has all of theirs: some hold the experts of a layer together.

    transformers puts some weights together as it loads them, such as the experts of a layer, and takes them apart as it
    saves them (transformers' conversion_mapping.py). Here that is done for one group at a time, so that no more is in
    memory."""
    mapping = get_model_conversion_mapping(model, add_legacy=False)
    done = [each for each in mapping if not isinstance(each, PrefixChange)]
    weights = [each for each in weights if each.name not in (model._keys_to_ignore_on_save or ())]
    if not done or {weight.name for weight in weights} <= set(known):
        return weights
    converters = [each.reverse_transform() for each in reversed(done) if isinstance(each, WeightConverter)]
    groups: dict[tuple[str, bool], list[ExportWeight]] = {}
    for weight in weights:
        name, pattern = apply_converters(weight.name, converters)
        groups.setdefault((name, pattern is not None), []).append(weight)

    @lru_cache(maxsize=1)  # of a group the next one asked for is most often part, too
    def converted(group: tuple[str, bool]) -> dict[str, torch.Tensor]:
        return revert_weight_conversion(model, {each.name: each.read() for each in groups[group]})

    found = []
    for group, members in groups.items():
        empty = {each.name: torch.empty(each.shape, dtype=each.dtype, device="meta") for each in members}
        for name, value in revert_weight_conversion(model, empty).items():

            def read(group: tuple[str, bool] = group, name: str = name) -> torch.Tensor:
                return converted(group)[name]

            found.append(ExportWeight(name, value.dtype, tuple(value.shape), read))
    return found
