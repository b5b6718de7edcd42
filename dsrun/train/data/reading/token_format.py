"""How the ids of a token file are stored: as its header says, as the user says, or as its first numbers show."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dsrun.errors import UsageError
from dsrun.recipe.preflight.data_files import LLM_C_HEADER, LLM_C_MAGIC, data_format
from dsrun.train.base.refusals import refusal

DTYPES = {name: np.dtype(name).newbyteorder("<") for name in ("uint16", "uint32", "int32", "int64")}
DTYPE_HINT = f"--bin-dtype says how its ids are stored: {', '.join(DTYPES)}"

# Bytes looked at in two places: enough for thousands of tokens, whatever their width.
_SAMPLE = 1 << 16
_WHOLE = 8


@dataclass(frozen=True)
class TokenFormat:
    """The dtype of the ids, and the byte at which they begin; `notice` says what was found where one would not expect
    it."""

    dtype: str
    offset: int = 0
    notice: str | None = None


def narrowest(largest_id: int) -> str:
    """uint16 as long as it holds the largest id."""
    return "uint16" if largest_id <= np.iinfo(np.uint16).max else "uint32"


def format_of(path: Path, vocab_size: int, requested: str | None) -> TokenFormat:
    """How a token file is stored: a NumPy array, with the header of llm.c, as `requested` (--bin-dtype), as a file
    `NAME.dtype` beside it says, or as its first numbers show; if they show nothing, in the narrowest dtype that holds
    the vocabulary.

    nanoGPT leaves the vocabulary in a pickle beside the file; a pickle is a program and is not opened."""
    if data_format(path) == "npy":
        return _array(path)
    with path.open("rb") as file:
        magic = int.from_bytes(file.read(4), "little")
    if magic in LLM_C_MAGIC:
        known = LLM_C_MAGIC[magic]
        return TokenFormat(known, LLM_C_HEADER, f"{path} has the header of llm.c: {known} ids follow it")
    dtype = requested or _named_beside(path)
    return TokenFormat(dtype) if dtype else _shown(path, vocab_size)


def _array(path: Path) -> TokenFormat:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise UsageError(f"{path} is not a NumPy array of token ids: {error}") from error
    name = next((name for name, dtype in DTYPES.items() if dtype == array.dtype), None)
    if array.ndim != 1 or name is None:
        shape = "×".join(map(str, array.shape))
        known = ", ".join(DTYPES)
        raise refusal("token_file.array", path=path, dtype=array.dtype, shape=shape or "of one number", known=known)
    return TokenFormat(name, array.offset)


def _named_beside(path: Path) -> str | None:
    beside = path.with_name(path.name + ".dtype")
    if not beside.is_file():
        return None
    named = beside.read_text(encoding="utf-8").strip()
    if named not in DTYPES:
        raise UsageError(f"{beside} has the invalid dtype {named!r}; valid: {', '.join(DTYPES)}")
    return named


def _shown(path: Path, vocab_size: int) -> TokenFormat:
    usual = narrowest(vocab_size - 1)
    samples = _samples(path)
    for dtype in dict.fromkeys((usual, "uint16", "uint32", "int64")):
        if all(_fits(sample, dtype, vocab_size) for sample in samples):
            notice = None if dtype == usual else f"{path} looks like {dtype} ids, not {usual}, and is read as such"
            return TokenFormat(dtype, notice=notice and f"{notice} (--bin-dtype {usual} if it is not)")
    return TokenFormat(usual)


def _samples(path: Path) -> list[bytes]:
    """The beginning of a file and a part of its middle, each a whole number of the widest ids."""
    size = path.stat().st_size
    found = []
    with path.open("rb") as file:
        for start in (0, size // 2 // _WHOLE * _WHOLE):
            file.seek(start)
            sample = file.read(_SAMPLE)
            found.append(sample[: len(sample) // _WHOLE * _WHOLE])
    return found


def _fits(sample: bytes, dtype: str, vocab_size: int) -> bool:
    """Whether a sample can be ids of this dtype: none beyond the vocabulary, and not wider ids whose upper halves are
    zeros."""
    ids = np.frombuffer(sample, DTYPES[dtype])
    if not len(ids):
        return True
    halves = dtype != "int64" and not ids[1::2].any() and bool(ids[::2].any())
    return not halves and int(ids.min()) >= 0 and int(ids.max()) < vocab_size
