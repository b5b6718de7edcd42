"""Token files: a flat run of uint16 or uint32 ids on disk, read through a memory map (as nanoGPT writes them)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from dsrun.errors import UsageError

DTYPES = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}

# 64 MiB of uint32 at a time.
_CHUNK = 1 << 24


class TokenBin(Dataset):
    """Map-style blocks of a token file: {"input_ids", "labels"}, each int64 [at most block_size], both the same.

    Blocks follow one another without overlap and the last may be short, so every token is in exactly one of them.
    Labels are not shifted: Transformers' models do that. Only pages that are read come into memory; the map is
    opened anew in each process, so that data loader workers get a path and not its content.

    `start` and `stop` bound the tokens used.
    """

    column_names = ("input_ids", "labels")

    def __init__(
        self, path: Path, dtype: str, block_size: int, *, start: int = 0, stop: int | None = None
    ) -> None:
        self.path = path
        self.dtype = dtype
        self.block_size = block_size
        self.start = start
        there = count_tokens(path, dtype)
        self.stop = there if stop is None else min(stop, there)
        self._map: np.ndarray | None = None

    def __len__(self) -> int:
        """Number of blocks."""
        return -(-(self.stop - self.start) // self.block_size)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        left = self.start + (index % len(self)) * self.block_size
        block = self._tokens()[left : min(left + self.block_size, self.stop)].astype(np.int64)
        return {"input_ids": block, "labels": block.copy()}

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        return (self[i] for i in range(len(self)))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_map": None}

    @property
    def tokens(self) -> int:
        """Number of tokens in all blocks together."""
        return self.stop - self.start

    def lengths(self) -> np.ndarray:
        """Tokens of each block, int64 [blocks]."""
        lengths = np.full(len(self), self.block_size, dtype=np.int64)
        if len(self):
            lengths[-1] = self.tokens - (len(self) - 1) * self.block_size
        return lengths

    def part(self, start: int, stop: int) -> TokenBin:
        """The same file between two tokens."""
        return TokenBin(self.path, self.dtype, self.block_size, start=start, stop=stop)

    def _tokens(self) -> np.ndarray:
        if self._map is None:
            self._map = np.memmap(self.path, dtype=DTYPES[self.dtype], mode="r")
        return self._map


def count_tokens(path: Path, dtype: str) -> int:
    """Tokens in a file.

    Raises:
        UsageError: the file is empty or not a whole number of tokens long.
    """
    size = path.stat().st_size
    width = DTYPES[dtype].itemsize
    if size == 0:
        raise UsageError(f"{path} is empty")
    if size % width:
        raise UsageError(f"{path} holds {size:,} bytes, which is no whole number of {dtype} tokens", fix=_dtype_fix(path))
    return size // width


def dtype_of(path: Path, vocab_size: int) -> str:
    """The dtype of a token file: as the file `NAME.dtype` beside it says, else the narrowest that holds the vocabulary.

    nanoGPT leaves the vocabulary in a pickle beside the file; a pickle is a program and is not opened.
    """
    beside = path.with_name(path.name + ".dtype")
    if beside.is_file():
        named = beside.read_text(encoding="utf-8").strip()
        if named not in DTYPES:
            raise UsageError(f"{beside} says {named!r}; it may say {' or '.join(DTYPES)}")
        return named
    return narrowest(vocab_size - 1)


def narrowest(largest_id: int) -> str:
    """uint16 as long as it holds the largest id."""
    return "uint16" if largest_id <= np.iinfo(np.uint16).max else "uint32"


def largest_token(path: Path, dtype: str) -> int:
    """The largest id in a file, read in pieces."""
    tokens = np.memmap(path, dtype=DTYPES[dtype], mode="r")
    return max(int(tokens[i : i + _CHUNK].max()) for i in range(0, len(tokens), _CHUNK))


def outside_hint(path: Path, dtype: str) -> str:
    """How to mend ids that are too large because the file was read in the wrong width."""
    return f"it was read as {dtype}; {_dtype_fix(path)}"


def _dtype_fix(path: Path) -> str:
    return f"write uint16 or uint32 into {path.name}.dtype beside it if that is what it holds"
