"""One data file: what its suffix says, and whether it begins like that.

Only the standard library is used and only the head of the file is read, so the launcher can refuse a mislabelled file
in milliseconds. The training process reads the whole file and finds what lies deeper."""

import codecs
import zlib
from pathlib import Path
from typing import Final

from dsrun.datafiles import toml_beside
from dsrun.errors import UsageError

FORMATS: Final[dict[str, str]] = toml_beside(__file__)
"""What the suffix of a data file says about its content."""

HEAD: Final = 1 << 20
"""Bytes looked at; after decompression, for gzip."""

# The mislabellings that people make most: how a file begins, which suffix it may have, and what it is.
_MARKS = (b"PAR1", "parquet", "a Parquet"), (b"\x1f\x8b", "bin", "a gzip"), (b"PK\x03\x04", "bin", "a zip")
_TEXT_FORMATS = ("json", "csv", "tsv", "txt")
LLM_C_MAGIC: Final = {20240520: "uint16", 20240801: "uint32"}
"""The first number of a token file of llm.c (llmc/dataloader.h), and the dtype of the ids after the header."""
LLM_C_HEADER: Final = 1024
"""Bytes of that header."""


def data_format(path: Path) -> str:
    """What the suffix says the file holds, `.gz` aside: json, csv, tsv, parquet, txt, bin or npy. Raises UsageError
    where it is not one of `FORMATS`, or a kind that is not read compressed."""
    kind = FORMATS.get(suffix_of(path))
    if kind is None:
        known = f"known: {', '.join(suffix.removeprefix('.') for suffix in FORMATS)}"
        raise UsageError(f"{path}: the suffix {path.suffix or '(none)'} says nothing about the data", fix=known)
    if is_gzip(path) and kind not in _TEXT_FORMATS:
        raise UsageError(f"{path}: {kind} files are not read compressed", fix=f"gunzip {path}")
    return kind


def is_gzip(path: Path) -> bool:
    """Whether the name says that the file is compressed."""
    return path.suffix.lower() == ".gz"


def check_data_file(path: Path) -> None:
    """Raise UsageError, with the line where there is one, for a data file that is not there, is empty, or does not
    begin like what its suffix says, or like text."""
    kind = data_format(path)
    head, complete = _read_head(path)
    for mark, able, what in _MARKS:
        if head.startswith(mark) and kind != able:
            raise UsageError(f"{path} is {what} file, not {kind} as its suffix says", fix="rename it to what it is")
    if kind == "parquet":
        _check_parquet(path)
    elif kind == "npy":
        if not head.startswith(b"\x93NUMPY"):
            raise UsageError(f"{path} is not a NumPy array: it does not begin with \\x93NUMPY")
    elif kind == "bin":
        if (size := path.stat().st_size) % 2:
            raise UsageError(f"{path} contains {size:,} bytes, which is not a whole number of uint16 tokens")
    else:
        _check_text(path, kind, head, complete)


def suffix_of(path: Path) -> str:
    """The suffix in lower case, that before `.gz` for a compressed file; empty where there is none."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def _read_head(path: Path) -> tuple[bytes, bool]:
    """The first bytes of the content and whether they are all of it."""
    import gzip  # many runs name no file

    try:
        with gzip.open(path, "rb") if is_gzip(path) else path.open("rb") as file:
            head = file.read(HEAD + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UsageError(f"{path} is not a valid gzip file: {error}") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    if not head:
        raise UsageError(f"{path} is empty")
    return head[:HEAD], len(head) <= HEAD


def _check_parquet(path: Path) -> None:
    with path.open("rb") as file:
        start = file.read(4)
        file.seek(max(0, path.stat().st_size - 4))
        end = file.read(4)
    if start != b"PAR1":
        raise UsageError(f"{path} is not a Parquet file: it does not begin with PAR1")
    if end != b"PAR1":
        raise UsageError(f"{path} is a Parquet file cut short: it does not end with PAR1", fix="copy it again")


def _check_text(path: Path, kind: str, head: bytes, complete: bool) -> None:
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UsageError(f"{path} is UTF-16; dsrun reads UTF-8", fix=f"iconv -f UTF-16 -t UTF-8 {path} > utf8.{kind}")
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    try:
        text = decoder.decode(head, final=complete)
    except UnicodeDecodeError as error:
        line = head[: error.start].count(b"\n") + 1
        raise UsageError(f"{path}, line {line}: not UTF-8 text", fix=as_utf8(path, error)) from error
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise UsageError(f"{path}, line {line}: binary data, not {kind} as its suffix says")
    if complete and not text.strip():
        raise UsageError(f"{path} is empty: it holds only white space")


def as_utf8(path: Path, error: UnicodeDecodeError) -> str | None:
    """The command that converts a file whose bytes could be Latin-1, as older programs write it; None for others."""
    around = error.object[max(0, error.start - 200) : error.start + 200]
    # Text has few control characters, and binary data many.
    if any(byte < 32 and byte not in b"\t\r\n" for byte in around):
        return None
    unpacked = f"gunzip -c {path} | " if is_gzip(path) else ""
    named = "" if unpacked else f" {path}"
    return f"if it is Latin-1: {unpacked}iconv -f LATIN1 -t UTF-8{named} > utf8{suffix_of(path)}"
