"""Token files that the user brings, used as they stand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from dsrun.errors import UsageError
from dsrun.train.data.cache import key_of, obtain
from dsrun.train.data.request import DataRequest
from dsrun.train.data.rows.sources import FileSource, Source
from dsrun.train.data.tokens.files import DTYPES, TokenBin, dtype_hint, narrowest
from dsrun.train.data.tokens.tokenise import check_vocabulary

# 64 MiB of uint32 at a time.
_CHUNK = 1 << 24


def is_bin(source: Source) -> bool:
    """Whether a source is made of token files."""
    return isinstance(source, FileSource) and source.format == "bin"


def open_tokens(
    split: str, source: Source, request: DataRequest, block_size: int, say: Callable[[str], None]
) -> TokenBin:
    """The blocks of a token file, which is looked through once for its largest id.

    Raises:
        UsageError: the model is no causal one, there are several files, or an id is outside the vocabulary.
    """
    path = source.paths[0]
    if request.task != "causal-lm":
        raise UsageError(
            f"{path}: token files are for causal language models; {request.model_type} is not one"
        )
    if len(source.paths) > 1:
        raise UsageError(f"{source.where}: one token file per split is read", fix="cat them into one")
    dtype = dtype_of(path, request.vocab_size)
    blocks = TokenBin(path, dtype, block_size)
    stat = path.stat()
    # Hashing the content would cost as much as looking through it.
    key = key_of({"bin": str(path.resolve()), "size": stat.st_size, "time": stat.st_mtime_ns, "dtype": dtype})
    _, meta = obtain(key, lambda _: {"largest": largest_token(path, dtype)}, say=say)
    hint = f"it was read as {dtype}; {dtype_hint(path)}"
    check_vocabulary(meta["largest"], request.vocab_size, f"{split} data ({path})", hint=hint)
    return blocks


def dtype_of(path: Path, vocab_size: int) -> str:
    """The dtype of a token file: as the file `NAME.dtype` beside it says, else the narrowest that holds the
    vocabulary.

    nanoGPT leaves the vocabulary in a pickle beside the file; a pickle is a program and is not opened.
    """
    beside = path.with_name(path.name + ".dtype")
    if beside.is_file():
        named = beside.read_text(encoding="utf-8").strip()
        if named not in DTYPES:
            raise UsageError(f"{beside} says {named!r}; it may say {' or '.join(DTYPES)}")
        return named
    return narrowest(vocab_size - 1)


def largest_token(path: Path, dtype: str) -> int:
    """The largest id in a file, read in pieces."""
    tokens = np.memmap(path, dtype=DTYPES[dtype], mode="r")
    return max(int(tokens[i : i + _CHUNK].max()) for i in range(0, len(tokens), _CHUNK))
