"""Reading logs of any size for the signs in them: a file, a compressed one, standard input, a text."""

from __future__ import annotations

import gzip
import io
import zlib
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from dsrun.diagnosis.scan import Scan, first_rank
from dsrun.errors import UsageError

CHUNK = 4 << 20
LONGEST = 4 << 20
# Of a larger log only so much is read closely: what went wrong first stands at its beginning, and what ended it at its
# end. 32 MiB take some seconds.
HEAD = 8 << 20
TAIL = 24 << 20
# The table of torch.distributed.run is the last thing in a launcher's log.
TABLE = 20_000


def scan_text(text: str) -> tuple[Scan, int | None]:
    """As `scan_stream`, of a text."""
    return scan_stream(io.BytesIO(text.encode(errors="replace")))


def scan_log(log: Path | bytes, name: str) -> tuple[Scan, int | None]:
    """As `scan_stream`, of a file, which may be a pipe, or of a content; also of one that gzip compressed.

    Raises UsageError where it cannot be read, with the log's name.
    """
    try:
        with log.open("rb") if isinstance(log, Path) else io.BufferedReader(io.BytesIO(log)) as stream:
            packed = stream.peek(2)[:2] == b"\x1f\x8b"
            return scan_stream(gzip.open(stream) if packed else stream)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def scan_stream(stream: BinaryIO | gzip.GzipFile) -> tuple[Scan, int | None]:
    """The scanned log, and the first rank to fail where the log ends with the launcher's table of them."""
    scan, read, held = Scan(), 0, 0
    waiting: deque[bytes] = deque()
    end = b""
    for chunk in _pieces(stream):
        end = (end + chunk[-TABLE:])[-TABLE:]
        if read < HEAD:
            scan.feed(chunk)
        else:
            waiting.append(chunk)
            held += len(chunk)
        read += len(chunk)
        while held > TAIL:
            oldest = waiting.popleft()
            held -= len(oldest)
            scan.skip(oldest.count(b"\n"))
    for chunk in waiting:
        scan.feed(chunk)
    return scan, first_rank(end.decode(errors="replace"))


def _pieces(stream: BinaryIO | gzip.GzipFile) -> Iterator[bytes]:
    """The stream in pieces that end with a line; a line of megabytes is cut anywhere."""
    rest = b""
    while data := stream.read(CHUNK):
        whole, newline, rest = (rest + data).rpartition(b"\n")
        if whole or newline:
            yield whole + newline
        if len(rest) > LONGEST:
            yield rest
            rest = b""
    if rest:
        yield rest
