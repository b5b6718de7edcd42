"""Token files: a flat run of ids on disk, read through a memory map; see `dsrun.train.data.reading.token_format`."""

import hashlib
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from torch.utils.data import ConcatDataset, Dataset

from dsrun.errors import UsageError
from dsrun.runs.checksum import sum_of
from dsrun.system.files import sha256_of
from dsrun.train.base.refusals import refusal, refuse
from dsrun.train.data.cache import CacheMeta, key_of, obtain
from dsrun.train.data.data_request import DataRequest
from dsrun.train.data.encoding.tokenise import check_vocabulary
from dsrun.train.data.reading.sources import HASHED_WHOLE, DataSource, FileSource
from dsrun.train.data.reading.token_format import DTYPE_HINT, DTYPES, format_of, narrowest

# Tokens read at a time: 64 MiB of uint32.
_CHUNK = 1 << 24


@dataclass(eq=False)
class TokenBin(Dataset):
    """Map-style blocks of a token file: {"input_ids", "labels"}, each int64 [at most block_size], both the same.

    Blocks follow one another without overlap and the last may be short, so every token is in exactly one of them.
    Labels are not shifted: Transformers' models do that. Only pages that are read come into memory; the map is opened
    anew in each process, so that data loader workers get a path and not its content. `start` and `stop` bound the
    tokens used; `sha256` is that of the file, whose tokens begin at byte `offset`."""

    column_names = ("input_ids", "labels")

    path: Path
    dtype: str
    block_size: int
    _: KW_ONLY
    offset: int = 0
    start: int = 0
    stop: int = sys.maxsize
    sha256: str = ""
    _map: np.ndarray | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.stop = min(self.stop, count_tokens(self.path, self.dtype, self.offset))

    def __len__(self) -> int:
        return math.ceil(self.tokens / self.block_size)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        left = self.start + (index % len(self)) * self.block_size
        block = np.array(self._tokens()[left : min(left + self.block_size, self.stop)], dtype=np.int64)
        return {"input_ids": block, "labels": block.copy()}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_map": None}

    @property
    def tokens(self) -> int:
        return self.stop - self.start

    @property
    def fingerprint(self) -> str:
        return f"{self.sha256}, {self.dtype} {self.start} to {self.stop} in blocks of {self.block_size}"

    def lengths(self) -> np.ndarray:
        lengths = np.full(len(self), self.block_size, dtype=np.int64)
        if len(self):
            lengths[-1] = self.tokens - (len(self) - 1) * self.block_size
        return lengths

    def cut(self, first: int, last: int) -> "TokenBin":
        """The blocks from `first` to before `last`."""
        start, stop = (min(self.start + number * self.block_size, self.stop) for number in (first, last))
        return replace(self, start=start, stop=stop)

    def _tokens(self) -> np.ndarray:
        if self._map is None:
            self._map = np.memmap(self.path, dtype=DTYPES[self.dtype], mode="r", offset=self.offset)
        return self._map


class TokenFiles(ConcatDataset):
    """The blocks of several token files, as `TokenBin` has those of one; no block spans two."""

    column_names = TokenBin.column_names

    def __init__(self, files: Sequence[TokenBin]) -> None:
        super().__init__(files)
        self.block_size = files[0].block_size

    @property
    def tokens(self) -> int:
        return sum(file.tokens for file in self.datasets)

    @property
    def fingerprint(self) -> str:
        return "; ".join(file.fingerprint for file in self.datasets)

    def lengths(self) -> np.ndarray:
        return np.concatenate([file.lengths() for file in self.datasets])

    def cut(self, first: int, last: int) -> "TokenFiles":
        """The blocks from `first` to before `last`."""
        starts = [end - len(file) for file, end in zip(self.datasets, self.cumulative_sizes, strict=True)]
        cut = [
            file.cut(max(0, first - start), max(0, min(len(file), last - start)))
            for file, start in zip(self.datasets, starts, strict=True)
            if start < last and start + len(file) > first
        ]
        return TokenFiles(cut)


TokenBlocks = TokenBin | TokenFiles


def count_tokens(path: Path, dtype: str, offset: int = 0) -> int:
    """Tokens in a file. Raises UsageError where there are none, or not a whole number of them."""
    size = path.stat().st_size - offset
    width = DTYPES[dtype].itemsize
    if size <= 0:
        raise UsageError(f"{path} is empty")
    if size % width:
        raise refusal("token_file.width", path=path, size=size, dtype=dtype, hint=DTYPE_HINT)
    return size // width


def divide(blocks: TokenBlocks, percent: int, where: str) -> tuple[TokenBlocks, TokenBlocks]:
    """The first `percent` of the blocks, at least one, and the others."""
    count = len(blocks)
    if count < 2:
        raise refusal("hold_out.one_block", where=where, size=blocks.block_size)
    held = min(count - 1, max(1, round(count * percent / 100)))
    return blocks.cut(0, held), blocks.cut(held, count)


def write_tokens(documents: Iterable[np.ndarray], path: Path, *, largest_id: int, limit: int | None = None) -> int:
    """Write runs of ids one after another as a token file, at most `limit` tokens; returns how many."""
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
    for chunk in table.column(column).chunks:
        # `flatten`, unlike `values`, respects the offsets of a slice and leaves out what null rows cover.
        yield chunk.flatten().to_numpy(zero_copy_only=False)


def rows_digest(table: Any) -> str:
    """SHA-256 of the ids and labels of all rows in their order, however they are divided into chunks."""
    digest = hashlib.sha256()
    for column in ("input_ids", "labels"):
        for chunk in table.column(column).chunks:
            digest.update(np.ascontiguousarray(chunk.value_lengths().to_numpy(zero_copy_only=False), "<i4").data)
        for ids in flat_chunks(table, column):
            digest.update(np.ascontiguousarray(ids, "<i4").data)
    return digest.hexdigest()


def is_bin(source: DataSource) -> TypeGuard[FileSource]:
    """Whether a source is a token file."""
    return isinstance(source, FileSource) and source.format in ("bin", "npy")


def open_tokens(
    split: str, source: FileSource, request: DataRequest, block_size: int, waiting: Callable[[], None]
) -> tuple[TokenBlocks, list[str]]:
    """The blocks of the token files of a split, and what was found out about them."""
    refuse("token_file_for", where=source.paths[0], request=request)
    opened = [_open_one(split, path, request, block_size, waiting) for path in source.paths]
    files = [blocks for blocks, _ in opened]
    notices = [notice for _, notice in opened if notice]
    return files[0] if len(files) == 1 else TokenFiles(files), notices


def _open_one(
    split: str, path: Path, request: DataRequest, block_size: int, waiting: Callable[[], None]
) -> tuple[TokenBin, str | None]:
    """The blocks of a token file, which is read once for its ids and its digest; and what was found out about it."""
    found = format_of(path, request.vocab_size, request.spec.bin_dtype)
    count_tokens(path, found.dtype, found.offset)
    stat = path.stat()
    parts = {"bin": str(path.resolve()), "size": stat.st_size, "time": stat.st_mtime_ns}
    if stat.st_size <= HASHED_WHOLE:
        parts["crc32"] = sum_of(path)["crc32"]

    def scan(_: Path) -> CacheMeta:
        tokens = np.memmap(path, dtype=DTYPES[found.dtype], mode="r", offset=found.offset)
        chunks = [tokens[i : i + _CHUNK] for i in range(0, len(tokens), _CHUNK)]
        extremes = min(int(each.min()) for each in chunks), max(int(each.max()) for each in chunks)
        return {"extremes": extremes, "sha256": sha256_of(path)}

    key = key_of({**parts, "dtype": found.dtype, "offset": found.offset})
    _, meta = obtain(key, scan, waiting=waiting)
    least, largest = meta["extremes"]
    hint = f"it was read as {found.dtype}; {DTYPE_HINT}"
    if least < 0:
        raise UsageError(f"{split} data ({path}) contains the negative id {least}", fix=hint)
    check_vocabulary(largest, request.vocab_size, f"{split} data ({path})", hint=hint)
    return TokenBin(path, found.dtype, block_size, offset=found.offset, sha256=meta["sha256"]), found.notice
