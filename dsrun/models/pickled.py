"""Weights as torch.save writes them: a pickle, which may hold code. It is looked at and never loaded here."""

import lzma
import pickletools
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import IO

from dsrun.errors import UsageError, one_line
from dsrun.system.files import open_regular

# What tensors are made of. torch.load, with weights_only, takes less than this and refuses the rest by itself.
_OF_TENSORS = frozenset({"torch", "collections", "numpy", "_codecs"})
_BUILT_IN = frozenset({"set", "frozenset", "bytearray", "complex", "slice", "range", "dict", "list", "tuple"})
# torch's older format begins with a magic number, its version and facts of the machine, each a pickle.
_PICKLES = 5
_LONGEST = 256 << 20
_MOST_CODES = 50_000_000
# A hostile file makes zipfile, its decompressors and pickletools fail in any of these ways.
_DAMAGED = (
    OSError, ValueError, LookupError, ArithmeticError, RuntimeError, EOFError, MemoryError, zipfile.BadZipFile,
    zlib.error, lzma.LZMAError,
)  # fmt: skip
_POINTER = b"version https://git-lfs.github.com/spec/"
_FIX = "get the model as safetensors, which hold no code"


def refuse_code(file: Path) -> None:
    """Raise UsageError for a file that would run code when it is unpickled, or is no pickle of torch's at all."""
    try:
        named = next((each for each in _names(file) if not _is_of_tensors(*each)), None)
    except _DAMAGED as error:
        with suppress(OSError), open_regular(file) as stream:
            if stream.read(len(_POINTER)) == _POINTER:
                raise UsageError(f"{file} is a pointer of Git LFS, not the weights", fix="git lfs pull") from None
        raise UsageError(f"{file} is not a file of weights: {one_line(error)}", fix=_FIX) from None
    if named is not None:
        raise UsageError(f"{file} would run {'.'.join(named)} when it is loaded: it holds more than weights", fix=_FIX)


def _is_of_tensors(module: str, name: str) -> bool:
    if module in ("builtins", "__builtin__"):
        return name in _BUILT_IN
    return module.partition(".")[0] in _OF_TENSORS


def _names(file: Path) -> Iterator[tuple[str, str]]:
    """Module and name of everything that the file has an unpickler look up."""
    with open_regular(file) as stream:
        if not zipfile.is_zipfile(stream):
            stream.seek(0)
            for _ in range(_PICKLES):
                yield from _names_in(stream)
            return
        with zipfile.ZipFile(stream) as archive:
            members = [info for info in archive.infolist() if info.filename.rpartition("/")[2] == "data.pkl"]
            if len(members) != 1:
                raise ValueError("torch has not written this archive")
            member = members[0]
            if member.file_size > _LONGEST:
                raise ValueError(f"its list of tensors has {member.file_size} bytes")
            with archive.open(member) as pickled:
                yield from _names_in(pickled)


def _names_in(stream: IO[bytes]) -> Iterator[tuple[str, str]]:
    """Those of one pickle. Of its stack and memo only the texts are followed; anything else in their place is "?"."""
    pushed: list[str] = ["?", "?"]
    memo: dict[int, str] = {}
    for code, argument, _ in islice(pickletools.genops(stream), _MOST_CODES):
        if code.name in ("GLOBAL", "INST"):
            module, _, name = str(argument).partition(" ")
            yield module, name
        elif code.name == "STACK_GLOBAL":
            yield pushed[0], pushed[1]
        if code.name == "MEMOIZE":
            memo[len(memo)] = pushed[1]
        elif code.name in ("PUT", "BINPUT", "LONG_BINPUT"):
            memo[int(str(argument))] = pushed[1]
        elif code.name in ("GET", "BINGET", "LONG_BINGET"):
            pushed = [pushed[1], memo.get(int(str(argument)), "?")]
        elif code.name not in ("PROTO", "FRAME"):
            pushed = [pushed[1], argument if isinstance(argument, str) and "UNICODE" in code.name else "?"]
