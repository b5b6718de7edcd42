"""Opening a wheel that may come from anywhere: nothing is unpacked before every name and size was looked at."""

from __future__ import annotations

import base64
import csv
import hashlib
import stat
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.parser import HeaderParser
from io import StringIO
from pathlib import Path, PurePosixPath
from typing import IO

from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from dsrun.errors import UsageError
from dsrun.findings import Finding

# DeepSpeed with all operations for ten architectures unpacks to about 1 GiB, at 3 to 8 times its packed size.
MAX_TOTAL = 16 << 30
MAX_RATIO = 200
MAX_FILES = 100_000
_RATIO_FROM = 64 << 20  # small files of zeros or spaces are harmless
_TEXT_LIMIT = 16 << 20
_CHUNK = 1 << 20
_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
_UNSIGNED = ("/RECORD", "/RECORD.jws", "/RECORD.p7s")  # the binary distribution format exempts these from RECORD
_AGAIN = "copy or build it again"


@dataclass(frozen=True, kw_only=True)
class WheelName:
    """What the file's name says."""

    name: str
    version: str
    local: str
    python: str
    abi: str
    platform: str


class Archive:
    """An open wheel. Get one from `open_wheel`."""

    def __init__(self, path: Path, opened: zipfile.ZipFile) -> None:
        self.path = path
        self.name = wheel_name(path)
        self._zip = opened
        self.names = tuple(info.filename for info in opened.infolist() if not info.is_dir())

    def read_text(self, name: str) -> str:
        """A text file of the wheel. Raises UsageError when it is damaged, too long or no UTF-8."""
        if self._zip.getinfo(name).file_size > _TEXT_LIMIT:
            raise UsageError(f"{self.path.name}: {name} is too long for a text file", fix=_AGAIN)
        try:
            return b"".join(self.chunks(name)).decode("utf-8")
        except UnicodeDecodeError:
            raise UsageError(f"{self.path.name}: {name} is not a text file", fix=_AGAIN) from None

    def chunks(self, name: str) -> Iterator[bytes]:
        """The content of one file, unpacked bit by bit. Raises UsageError when it is damaged."""
        try:
            with self._zip.open(name) as member:
                while chunk := member.read(_CHUNK):
                    yield chunk
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
            raise UsageError(f"{self.path.name}: {name} is damaged ({error})", fix=_AGAIN) from None

    def copy(self, name: str, to: IO[bytes]) -> None:
        """Write the content of one file to an open file."""
        for chunk in self.chunks(name):
            to.write(chunk)

    def unpack(self, folder: Path) -> None:
        """Write every file below `folder`, as an installer does without scripts and entry points."""
        for name in self.names:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as file:
                self.copy(name, file)

    def info_file(self, name: str) -> str | None:
        """The path of `name` (METADATA, RECORD, …) in the wheel's only .dist-info folder; None: not there."""
        found = [each for each in self.names if each.endswith(f".dist-info/{name}") and each.count("/") == 1]
        return found[0] if len(found) == 1 else None


@contextmanager
def open_wheel(path: Path) -> Iterator[Archive]:
    """Open the wheel at `path` after looking at the name, size and kind of everything in it.

    Raises UsageError, one line, for what is no zip archive, cut short, or made to harm: a zip bomb, names
    that leave the folder, links, two files of one name.
    """
    opened = _opened(path)
    with opened:
        _refuse(path, opened)
        yield Archive(path, opened)


def wheel_name(path: Path) -> WheelName:
    """The parts of a wheel's file name (several tags joined by dots). Raises UsageError for another name."""
    try:
        name, version, _, tags = parse_wheel_filename(path.name)
    except InvalidWheelFilename as error:
        raise UsageError(
            f"{path.name}: not the name of a wheel ({error})", fix="keep the name that the build gave it"
        ) from None
    return WheelName(
        name=name,
        version=str(version),
        local=version.local or "",
        python=_joined(tags, "interpreter"),
        abi=_joined(tags, "abi"),
        platform=_joined(tags, "platform"),
    )


def _joined(tags: frozenset[Tag], part: str) -> str:
    return ".".join(sorted({str(getattr(tag, part)) for tag in tags}))


def _opened(path: Path) -> zipfile.ZipFile:
    try:
        with path.open("rb") as file:
            start = file.read(4)
        return zipfile.ZipFile(path)
    except OSError as error:
        reason = "is a folder" if path.is_dir() else f"cannot be read: {error.strerror or error}"
        raise UsageError(f"{path}: {reason}", fix="name a .whl file") from None
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        if not start:
            raise UsageError(f"{path}: is empty", fix=_AGAIN) from None
        if start == b"PK\x03\x04":
            raise UsageError(f"{path}: is cut short, the end of the archive is missing", fix=_AGAIN) from None
        raise UsageError(f"{path}: not a wheel: not a zip archive", fix="name a .whl file") from None


def _refuse(path: Path, opened: zipfile.ZipFile) -> None:
    infos = opened.infolist()
    if len(infos) > MAX_FILES:
        raise UsageError(f"{path.name}: holds {len(infos)} files, more than {MAX_FILES}", fix=_AGAIN)
    for info in infos:
        problem = _problem(info)
        if problem:
            raise UsageError(f"{path.name}: refused: {info.filename!r} {problem}", fix="do not install it")
    # Of two files with one name, a reader that looks takes the last and an installer may keep the first.
    names = Counter(str(PurePosixPath(info.filename)) for info in infos)
    twice = next((name for name, count in names.items() if count > 1), None)
    if twice is not None:
        raise UsageError(f"{path.name}: refused: {twice!r} is in it twice", fix="do not install it")
    total = sum(info.file_size for info in infos)
    if total > MAX_TOTAL or (total > _RATIO_FROM and total > MAX_RATIO * path.stat().st_size):
        raise UsageError(
            f"{path.name}: refused: would unpack to {total / 2**20:,.0f} MiB from "
            f"{path.stat().st_size / 2**20:,.1f} MiB (a zip bomb?)",
            fix="do not install it",
        )


def _problem(info: zipfile.ZipInfo) -> str | None:
    """Why a wheel with this member is not opened; None for an ordinary file or folder."""
    name = info.filename
    parts = PurePosixPath(name).parts
    mode = info.external_attr >> 16
    if not parts or name.startswith("/") or "\\" in name or "\0" in name or ":" in parts[0]:
        return "is an absolute or unusable name"
    if ".." in parts:
        return "leaves the folder it is unpacked into"
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "is a link or a device"
    if info.flag_bits & 0x1 or info.compress_type not in _METHODS:
        return "is encrypted, or packed by a method that wheels do not use"
    if info.file_size > _RATIO_FROM and info.file_size > MAX_RATIO * max(info.compress_size, 1):
        return f"would unpack to {info.file_size / info.compress_size:,.0f} times its size (a zip bomb?)"
    return None


def check_archive(archive: Archive) -> list[Finding]:
    """Whether the content is what RECORD and METADATA promise; every byte is read once."""
    return [*_check_metadata(archive), *_check_record(archive)]


def _error(code: str, message: str, where: str) -> Finding:
    return Finding(level="error", code=code, message=message, fix=_AGAIN, where=where)


def _check_metadata(archive: Archive) -> list[Finding]:
    where = archive.path.name
    member = archive.info_file("METADATA")
    if member is None:
        return [_error("wheel_metadata", "has no .dist-info/METADATA: pip will not install it", where)]
    headers = HeaderParser().parsestr(archive.read_text(member))
    name, version = str(headers.get("Name", "")), str(headers.get("Version", ""))
    told = archive.name
    if canonicalize_name(name) != told.name or _normal(version) != told.version:
        message = f"is named {told.name} {told.version} but its METADATA says {name} {version}: pip will refuse it"
        return [_error("wheel_metadata", message, where)]
    return []


def _normal(version: str) -> str:
    try:
        return str(Version(version))
    except InvalidVersion:
        return version


def _check_record(archive: Archive) -> list[Finding]:
    where = archive.path.name
    member = archive.info_file("RECORD")
    if member is None:
        return [_error("wheel_record", "has no .dist-info/RECORD: nothing says what belongs in it", where)]
    rows = {row[0]: row[1] for row in csv.reader(StringIO(archive.read_text(member))) if len(row) == 3}
    present = {name for name in archive.names if not name.endswith(_UNSIGNED)}
    found = [
        *((name, "is named in RECORD but missing") for name in rows if name not in archive.names),
        *((name, "is not named in RECORD") for name in sorted(present - set(rows))),
        *(
            (name, "differs from its hash in RECORD")
            for name in sorted(present & set(rows))
            if not _same(archive, name, rows[name])
        ),
    ]
    return [_error("wheel_record", f"{name} {problem}", where) for name, problem in found]


def record_hash(chunks: Iterable[bytes], kind: str = "sha256") -> str:
    """A file's hash as RECORD has it: `sha256=` and urlsafe base64 without padding (PEP 376, PEP 427)."""
    digest = hashlib.new(kind)
    for chunk in chunks:
        digest.update(chunk)
    return f"{kind}={base64.urlsafe_b64encode(digest.digest()).rstrip(b'=').decode()}"


def _same(archive: Archive, name: str, recorded: str) -> bool:
    """Whether a file has the hash that RECORD gives."""
    kind = recorded.partition("=")[0]
    return kind in ("sha256", "sha384", "sha512") and record_hash(archive.chunks(name), kind) == recorded
