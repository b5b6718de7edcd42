"""Opening a wheel from any source: every name and size is checked before anything is unpacked."""

from __future__ import annotations

import base64
import csv
import hashlib
import stat
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
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
_RATIO_FROM = 64 << 20  # small files of zeros or spaces are harmless
_CHUNK = 1 << 20
_UNSIGNED = ("/RECORD", "/RECORD.jws", "/RECORD.p7s")  # the binary distribution format exempts these from RECORD
_AGAIN = "copy or build it again"


@dataclass(frozen=True, kw_only=True)
class WheelName:
    """The parts of a wheel's file name."""

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
        """A text file of the wheel. Raises UsageError when it is damaged or not UTF-8."""
        try:
            return b"".join(self.chunks(name)).decode("utf-8")
        except UnicodeDecodeError:
            raise UsageError(f"{self.path.name}: {name} is not a text file", fix=_AGAIN) from None

    def chunks(self, name: str) -> Iterator[bytes]:
        """The content of one file, in chunks. Raises UsageError when it is damaged."""
        try:
            with self._zip.open(name) as member:
                while chunk := member.read(_CHUNK):
                    yield chunk
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:  # RuntimeError: encrypted
            raise UsageError(f"{self.path.name}: {name} is damaged ({error})", fix=_AGAIN) from None

    def copy(self, name: str, to: IO[bytes]) -> None:
        """Write the content of one file to an open file."""
        for chunk in self.chunks(name):
            to.write(chunk)

    def unpack(self, folder: Path) -> None:
        """Write every file below `folder`, as an installer does, without scripts and entry points."""
        self._zip.extractall(folder)

    def info_file(self, name: str) -> str | None:
        """The path of `name` (METADATA, RECORD, …) in the wheel's only .dist-info folder; None: not there."""
        found = [each for each in self.names if each.endswith(f".dist-info/{name}") and each.count("/") == 1]
        return found[0] if len(found) == 1 else None


@contextmanager
def open_wheel(path: Path) -> Iterator[Archive]:
    """Open the wheel at `path` after checking the name, size and kind of every member.

    Raises UsageError, one line, for a file that is not a zip archive or is truncated, and for a malicious one: a zip
    bomb, names that lead out of the folder, links, two files of one name.
    """
    with _opened(path) as opened:
        _check_members(path, opened)
        yield Archive(path, opened)


def wheel_name(path: Path) -> WheelName:
    """The parts of a wheel's file name (several tags joined by dots). Raises UsageError for another name."""
    try:
        name, version, _, tags = parse_wheel_filename(path.name)
    except InvalidWheelFilename as error:
        raise UsageError(f"{path.name}: not the name of a wheel ({error})", fix="restore the original name") from None
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
        return zipfile.ZipFile(path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}", fix="name a .whl file") from None
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        raise UsageError(f"{path}: not a wheel: not a zip archive, or truncated", fix=_AGAIN) from None


def _check_members(path: Path, opened: zipfile.ZipFile) -> None:
    infos = opened.infolist()
    # Of two files with one name, zipfile reads the last and an installer may keep the first.
    names = Counter(str(PurePosixPath(info.filename)) for info in infos)
    problems = [f"{info.filename!r} {problem}" for info in infos if (problem := _problem(info))]
    problems += [f"{name!r} is in it twice" for name, count in names.items() if count > 1]
    total, packed = sum(info.file_size for info in infos), path.stat().st_size
    if total > MAX_TOTAL or (total > _RATIO_FROM and total > MAX_RATIO * packed):
        problems.append(
            f"would unpack to {total / 2**20:,.0f} MiB from {packed / 2**20:,.1f} MiB (a zip bomb?)",
        )
    if problems:
        raise UsageError(f"{path.name}: refused: {problems[0]}", fix="do not install it")


def _problem(info: zipfile.ZipInfo) -> str | None:
    """Why a wheel with this member is not opened; None for an ordinary file or folder."""
    name = info.filename
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or "\\" in name or "\0" in name or ":" in parts[0]:
        return "is an absolute or unusable name"
    if ".." in parts:
        return "leaves the folder it is unpacked into"
    if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "is a link or a device"
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
    with suppress(InvalidVersion):
        if (canonicalize_name(name), str(Version(version))) == (archive.name.name, archive.name.version):
            return []
    named = f"{archive.name.name} {archive.name.version}"
    message = f"is named {named} but its METADATA says {name} {version}: pip will refuse it"
    return [_error("wheel_metadata", message, where)]


def _check_record(archive: Archive) -> list[Finding]:
    where = archive.path.name
    member = archive.info_file("RECORD")
    if member is None:
        return [_error("wheel_record", "has no .dist-info/RECORD: its contents cannot be checked", where)]
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
    kind = recorded.partition("=")[0]
    return kind in ("sha256", "sha384", "sha512") and record_hash(archive.chunks(name), kind) == recorded
