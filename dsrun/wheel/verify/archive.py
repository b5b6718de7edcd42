"""Opening a wheel from any source, and comparing its content with its own RECORD and METADATA."""

import base64
import csv
import hashlib
import lzma
import stat
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from email.parser import HeaderParser
from io import StringIO
from pathlib import Path

from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from dsrun.errors import UsageError
from dsrun.findings.finding import Finding, finding_of
from dsrun.system.files import open_regular
from dsrun.system.terminal.display import size_text

UNSAFE = "wheel_entry"
"""The code of what makes unpacking a wheel dangerous."""
PROVENANCE = "dsrun.json"
"""In .dist-info of a wheel that dsrun built: what it was built from."""
LONGEST_TEXT = 1 << 20
"""Bytes: parsed, METADATA takes forty times its size."""
LONGEST_RECORD = 64 << 20
"""It has 100 bytes for each file."""
_CHUNK = 1 << 20
# zlib reaches a thousandth, compiled code a third: no wheel of more than a gigabyte is so much smaller packed.
_LARGE = 1 << 30
_TIMES = 100
_MOST_FILES = 20
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


class WheelArchive:
    """An open wheel. Get one from `open_wheel`."""

    def __init__(self, path: Path, opened: zipfile.ZipFile) -> None:
        self.path = path
        self.name = wheel_name(path)
        self._zip = opened
        self._hashes: dict[str, str] = {}
        self.folders = tuple(info for info in opened.infolist() if info.is_dir())
        self.entries = tuple(info for info in opened.infolist() if not info.is_dir())
        # In the archive's order, each once.
        self.names = tuple(dict.fromkeys(info.filename for info in self.entries))
        self._known = frozenset(self.names)

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def read_text(self, name: str, longest: int | None = None) -> str:
        """A text file of the wheel. Raises UsageError when it is damaged, too long, or not UTF-8."""
        longest = longest or LONGEST_TEXT
        if (size := self._zip.getinfo(name).file_size) > longest:
            most = size_text(longest)
            raise UsageError(f"{self.path.name}: {name} has {size_text(size)}: no wheel's has {most}", fix=_AGAIN)
        try:
            return b"".join(self._chunks(name)).decode("utf-8")
        except UnicodeDecodeError:
            raise UsageError(f"{self.path.name}: {name} is not a text file", fix=_AGAIN) from None

    def _chunks(self, name: str) -> Iterator[bytes]:
        try:
            with self._zip.open(name) as member:
                while chunk := member.read(_CHUNK):
                    yield chunk
        except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, RuntimeError) as error:  # encrypted
            raise UsageError(f"{self.path.name}: {name} is damaged ({error})", fix=_AGAIN) from None

    def extract(self, name: str, to: Path) -> None:
        """Write the content of one file to the file `to`. Raises UsageError when it is damaged."""
        digest = hashlib.sha256()
        with to.open("wb") as file:
            for chunk in self._chunks(name):
                digest.update(chunk)
                file.write(chunk)
        self._hashes[name] = _recorded("sha256", digest.digest())

    def record_hash(self, name: str, kind: str) -> str:
        """The hash of one file as RECORD has it. A file that was extracted is not read again."""
        if kind == "sha256" and name in self._hashes:
            return self._hashes[name]
        return record_hash(self._chunks(name), kind)

    def unpack(self, folder: Path) -> None:
        """Write every file below `folder`, as an installer does, without scripts and entry points."""
        self._zip.extractall(folder)

    def info_file(self, name: str) -> str | None:
        """The path of `name` (METADATA, RECORD, …) in the wheel's only .dist-info folder; None: not there."""
        found = [each for each in self.names if each.endswith(f".dist-info/{name}") and each.count("/") == 1]
        return found[0] if len(found) == 1 else None


@contextmanager
def open_wheel(path: Path) -> Iterator[WheelArchive]:
    """Open the wheel at `path`. Raises UsageError for a file that is not a wheel or is truncated."""
    with ExitStack() as stack:
        try:
            opened = zipfile.ZipFile(stack.enter_context(open_regular(path)))
        except OSError as error:
            raise UsageError(f"{path}: cannot be read: {error.strerror or error}", fix="name a .whl file") from None
        except (zipfile.BadZipFile, ValueError, NotImplementedError):
            raise UsageError(f"{path}: not a wheel: not a zip archive, or truncated", fix=_AGAIN) from None
        stack.enter_context(opened)
        yield WheelArchive(path, opened)


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


def check_archive(archive: WheelArchive) -> list[Finding]:
    """Whether the content stays in its folder and has a sane size, and is what RECORD and METADATA promise."""
    unsafe = _check_entries(archive)
    # What fills a disk is not read either.
    return unsafe or [*_check_metadata(archive), *_check_record(archive)]


def _check_entries(archive: WheelArchive) -> list[Finding]:
    """Names that lead out of the folder it is installed into, links, doubled names, and a size that none has."""
    where, counts = archive.path.name, Counter(info.filename for info in archive.entries)
    packed = sum(info.compress_size for info in archive.entries)
    size = sum(info.file_size for info in archive.entries)
    everything = (*archive.entries, *archive.folders)
    escaping = dict.fromkeys(info.filename for info in everything if _escapes(info.filename))
    links = [info.filename for info in everything if stat.S_ISLNK(info.external_attr >> 16)]
    doubled = [name for name, count in counts.items() if count > 1]
    found = [
        *(("wheel_entry.escapes", name) for name in escaping),
        *(("wheel_entry.link", name) for name in links),
        *(("wheel_entry.doubled", name) for name in doubled),
    ]
    findings = [finding_of(code, where=where, file=name) for code, name in found[:_MOST_FILES]]
    if size > _LARGE and size > _TIMES * packed:
        findings.append(finding_of("wheel_entry.bomb", where=where, packed=size_text(packed), size=size_text(size)))
    return findings


def _escapes(name: str) -> bool:
    """Whether an installer that joins the name to a folder would write elsewhere."""
    parts = name.replace("\\", "/").split("/")
    return ".." in parts or parts[0] in ("", "~") or ":" in parts[0] or "\0" in name


def _check_metadata(archive: WheelArchive) -> list[Finding]:
    where = archive.path.name
    member = archive.info_file("METADATA")
    if member is None:
        return [finding_of("wheel_metadata", where=where)]
    headers = HeaderParser().parsestr(archive.read_text(member))
    name, version = str(headers.get("Name", "")), str(headers.get("Version", ""))
    with suppress(InvalidVersion):
        if (canonicalize_name(name), str(Version(version))) == (archive.name.name, archive.name.version):
            return []
    named = f"{archive.name.name} {archive.name.version}"
    return [finding_of("wheel_metadata.differs", where=where, named=named, name=name, version=version)]


def _check_record(archive: WheelArchive) -> list[Finding]:
    where = archive.path.name
    member = archive.info_file("RECORD")
    if member is None:
        return [finding_of("wheel_record", where=where)]
    try:
        rows = {
            row[0]: row[1] for row in csv.reader(StringIO(archive.read_text(member, LONGEST_RECORD))) if len(row) == 3
        }
    except csv.Error as error:
        return [finding_of("wheel_record.unreadable", where=where, reason=str(error))]
    present = {name for name in archive.names if not name.endswith(_UNSIGNED)}
    changed = [name for name in sorted(present & set(rows)) if not _same(archive, name, rows[name])]
    found = [
        *(("wheel_record.gone", name) for name in rows if name not in archive),
        *(("wheel_record.more", name) for name in sorted(present - set(rows))),
        *(("wheel_record.differs", name) for name in changed),
    ]
    findings = [finding_of(code, where=where, file=name) for code, name in found[:_MOST_FILES]]
    if others := len(found) - len(findings):
        findings.append(finding_of("wheel_record.others", where=where, count=others))
    return findings


def record_hash(chunks: Iterable[bytes], kind: str = "sha256") -> str:
    """A file's hash as RECORD has it: `sha256=` and urlsafe base64 without padding (PEP 376, PEP 427)."""
    digest = hashlib.new(kind)
    for chunk in chunks:
        digest.update(chunk)
    return _recorded(kind, digest.digest())


def _recorded(kind: str, digest: bytes) -> str:
    return f"{kind}={base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def _same(archive: WheelArchive, name: str, recorded: str) -> bool:
    kind = recorded.partition("=")[0]
    return kind in ("sha256", "sha384", "sha512") and archive.record_hash(name, kind) == recorded
