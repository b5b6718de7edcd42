"""Logs: their bytes, plain or compressed, of a file or a pipe, in UTF-8, UTF-16 or GBK; and their names in a folder."""

import bz2
import codecs
import gzip
import io
import lzma
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import IO, Any

from dsrun.errors import MissingError, UsageError

CHUNK = 4 << 20
LONGEST = 4 << 20
# What a sign or a traceback may need of the next piece.
AHEAD = 1 << 17
_ZIP = b"PK\x03\x04"
_ZSTD = b"\x28\xb5\x2f\xfd"
_UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
# How a line of Windows ends in UTF-16: wsl.exe writes no mark of its order in front.
_UTF16_END = "\r\n".encode("utf-16-le")
_SAMPLE = 1 << 16
# Colours, cursor movements, titles.
_ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[@-Z\\^_])")
# A log has tabs, bells, carriage returns and escapes, and where a truncated file was written on, zeros.
_CONTROL = bytes({*range(1, 32), 127} - {7, 8, 9, 10, 12, 13, 27})
_BINARY = 0.02
# Two Chinese characters of GB2312 in a row: all longer messages have them, Western text of one byte a letter hardly.
_CHINESE = re.compile(rb"(?:[\xb0-\xf7][\xa1-\xfe]){2}")
_DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, NotImplementedError, RuntimeError)


class NotText(UsageError):
    """What was given as a log is a program, a picture or any other binary content."""


def read_log(log: Path | bytes, name: str) -> Iterator[tuple[bytes, int]]:
    """The content of `log`, a file, a pipe or the bytes themselves, in pieces.

    A piece ends with a line at the length given with it; what follows there comes again in the next one. A line of
    megabytes is cut anywhere. Escape sequences are left out, UTF-16 and lines in GBK or GB18030 become UTF-8.

    Raises UsageError, with `name`, where it cannot be read; NotText where it is not a text; MissingError for zstd
    without the package zstandard."""
    with ExitStack() as stack:
        try:
            stream = stack.enter_context(log.open("rb") if isinstance(log, Path) else io.BytesIO(log))
            chunks = _text(_unpacked(stream, name, stack), name)
            yield from _with_lookahead(map(_from_gbk, _whole_lines(chunks)))
        except _DAMAGE as error:
            raise UsageError(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def members(log: Path, name: str) -> Mapping[str, Path | bytes]:
    """The logs in `log` by name: itself, or if it is a zip archive, its files that are text."""
    try:
        with log.open("rb") as file:
            if not file.seekable() or file.read(4) != _ZIP:
                return {name: log}
        with zipfile.ZipFile(log) as archive:
            found = {f"{name}:{each.filename}": archive.read(each) for each in archive.infolist() if each.file_size}
    except _DAMAGE as error:
        raise UsageError(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    texts = {member: content for member, content in found.items() if not is_binary(content[:CHUNK])}
    if not texts:
        raise NotText(f"{name} contains no text", fix="give a log")
    return texts


def is_binary(begin: bytes) -> bool:
    """Whether something that begins so is a program or other binary content, compressed texts aside."""
    if begin.startswith(b"\x7fELF"):
        return True
    if _utf16(begin):
        return False
    sample = begin[:_SAMPLE]
    return len(sample) - len(sample.translate(None, _CONTROL)) > _BINARY * len(sample)


def _utf16(begin: bytes) -> str | None:
    """Which UTF-16 a text that begins so is in, if it is."""
    return _UTF16.get(begin[:2]) or ("utf-16-le" if _UTF16_END in begin[:_SAMPLE] else None)


def _unpacked(stream: IO[bytes] | io.BufferedIOBase, name: str, stack: ExitStack) -> Iterator[bytes]:
    begin = stream.read(16)
    whole = io.BufferedReader(_Again(begin, stream))
    if begin.startswith(b"\x1f\x8b"):
        return _chunks(stack.enter_context(gzip.open(whole)))
    if begin.startswith(b"BZh"):
        return _chunks(stack.enter_context(bz2.open(whole)))
    if begin.startswith(b"\xfd7zXZ\0"):
        return _chunks(stack.enter_context(lzma.open(whole)))
    if begin.startswith(_ZSTD):
        return _chunks(_zstandard(name).ZstdDecompressor().stream_reader(whole, read_across_frames=True))
    if begin.startswith(_ZIP):
        raise UsageError(f"{name} is a zip archive in a pipe", fix="give the file itself")
    return _chunks(whole)


def _zstandard(name: str) -> Any:
    try:
        return import_module("zstandard")
    except ImportError:
        raise MissingError(f"{name} is compressed with zstd", fix="pip install zstandard, or unpack it") from None


class _Again(io.RawIOBase):
    """A stream whose first bytes have been read already."""

    def __init__(self, begin: bytes, stream: IO[bytes] | io.BufferedIOBase) -> None:
        self._begin, self._stream = begin, stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data, self._begin = self._begin[: len(buffer)], self._begin[len(buffer) :]
        data = data or self._stream.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _chunks(stream: Any) -> Iterator[bytes]:
    while data := stream.read(CHUNK):
        yield data


def _text(chunks: Iterator[bytes], name: str) -> Iterator[bytes]:
    """The chunks in UTF-8. Raises NotText, with `name`, where they are none."""
    first = next(chunks, b"")
    if is_binary(first):
        raise NotText(f"{name} is not text", fix="give a log")
    rest, encoding = chain([first], chunks), _utf16(first)
    if encoding is None:
        return rest
    return (text.encode(errors="replace") for text in codecs.iterdecode(rest, encoding, errors="replace"))


def _whole_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for data in chunks:
        whole, newline, rest = (rest + data).rpartition(b"\n")
        if whole or newline:
            yield whole + newline
        if len(rest) > LONGEST:
            yield rest
            rest = b""
    if rest:
        yield rest


def _from_gbk(piece: bytes) -> bytes:
    """`piece` with its lines of GBK as UTF-8: one log holds both where a shell or Windows speaks GBK to programs that
    write UTF-8."""
    return piece if _is_utf8(piece) else b"\n".join(map(_line_from_gbk, piece.split(b"\n")))


def _line_from_gbk(line: bytes) -> bytes:
    if _is_utf8(line):
        return line
    if b"\r" in line:
        return b"\r".join(map(_line_from_gbk, line.split(b"\r")))
    try:
        return line.decode("gb18030").encode() if _CHINESE.search(line) else line
    except UnicodeDecodeError:
        return line


def _is_utf8(text: bytes) -> bool:
    """Whether it is valid; its end may be cut within a character, as that of a log is whose writer was killed."""
    if text.isascii():
        return True
    try:
        codecs.utf_8_decode(text, "strict", False)
    except UnicodeDecodeError:
        return False
    return True


def _with_lookahead(pieces: Iterator[bytes]) -> Iterator[tuple[bytes, int]]:
    held = b""
    for piece in pieces:
        plain = _ESCAPES.sub(b"", piece) if b"\x1b" in piece else piece
        if held:
            yield held + plain[:AHEAD], len(held)
        held = plain
    if held:
        yield held, len(held)


LOG = re.compile(r".*\.(log|out|err|txt|stdout|stderr)(\.(gz|bz2|xz|zst|zip))?|.*\.[oe]\d+(\.\d+)?|std(out|err)")
# slurm-71233_4.out, train-71233.err, train.o71233
_JOB = re.compile(
    r"(?:^slurm|[-_.%])[-_]?(\d{3,}(?:_\d+)?)\.(?:out|err|log|txt)|^slurm-(\d+(?:_\d+)?)\.|\.[oe](\d+(?:\.\d+)?)$"
)
# What tells one process of a run from the others.
_PROCESS = re.compile(
    r"(?i)(?:^|[-_.])(?:(?:local[-_]?)?rank|node|task|worker|host|proc|gpu|pod|attempt)?[-_.]?\d+(?=[-_.]|$)"
)
_PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")
# Names that tell streams apart, not runs.
_STREAMS = ("", "std", "log", "stdout", "stderr", "out", "err")
# Deeper than torch.distributed.run --log-dir goes: RUN/attempt_0/3/stderr.log.
_DEPTH = 5


def job_of(path: Path) -> str | None:
    """The number of the batch job in a log's name, None where there is none."""
    match = _JOB.search(path.name)
    return next(filter(None, match.groups())) if match else None


def logs_below(folder: Path) -> list[Path]:
    """All files of `folder` and its sub-folders that are called like logs and are text, in the order of their names."""
    found = (path for path in folder.rglob("*") if len(path.relative_to(folder).parts) <= _DEPTH)
    return sorted(path for path in found if LOG.fullmatch(path.name) and path.is_file() and _has_text(path))


def by_job(paths: Iterable[Path], folder: Path) -> dict[str, list[Path]]:
    """Logs by the job that wrote them: its number, else the names without ranks, nodes and tasks; logs that differ in
    nothing else are of one run."""
    jobs: dict[str, list[Path]] = {}
    for path in paths:
        job = job_of(path)
        jobs.setdefault(f"job {job}" if job else _run_of(path.relative_to(folder)), []).append(path)
    return jobs


def _run_of(path: Path) -> str:
    """What the log is called without its rank: its sub-folder, or its stem."""
    if len(path.parts) > 1 and not _PROCESS.search(path.parts[0]):
        return path.parts[0]
    name = path.stem if path.suffix in _PACKED else path.name
    stem = _PROCESS.sub("", name).rpartition(".")[0].strip("-_.")
    return "logs" if stem in _STREAMS else stem


def _has_text(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            begin = file.read(1 << 16)
    except OSError:
        return True  # reading it says why
    return bool(begin) and (path.suffix in _PACKED or not is_binary(begin))
