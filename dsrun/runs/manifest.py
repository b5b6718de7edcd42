"""Which checkpoints are whole: a manifest of sizes and checksums, written after everything else."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsrun.findings import Finding
from dsrun.runs.folder import RunFolder
from dsrun.runs.records import fsync_folder, utc_now, write_json_atomic
from dsrun.runs.schema import MANIFEST_VERSION, Manifest, ManifestFile
from dsrun.system.host import cores

MANIFEST = "manifest.json"
INCOMPLETE = "checkpoint_incomplete"
CORRUPT = "checkpoint_corrupt"
_CHUNK = 8 << 20
_MAX_THREADS = 16


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The checkpoints of a run: whole ones as (step, path), newest first, and why others were passed over."""

    complete: list[tuple[int, Path]]
    passed_over: list[Finding]


def write_manifest(checkpoint: Path, extra: Mapping[str, Any], *, durable: bool = True) -> Path:
    """List every file of `checkpoint` with size and CRC-32 in its manifest, and return the manifest's path.

    Call it on one process, after all ranks have written. With `durable` the files are on disk before the
    manifest says so, and a power cut cannot leave a manifest without its files. crc32 finds damage, not
    malice, and costs under a tenth of a save where sha256 costs up to half.
    """
    names = list(_files(checkpoint))
    with ThreadPoolExecutor(_threads(len(names))) as pool:
        entries = pool.map(lambda name: _entry(checkpoint / name, durable), names)
        files = dict(zip(names, entries, strict=True))
    if durable:
        for folder in {(checkpoint / name).parent for name in names}:
            fsync_folder(folder)
    manifest: Manifest = {
        "version": MANIFEST_VERSION,
        "time": utc_now(),
        "files": files,
        "extra": dict(extra),
    }
    write_json_atomic(checkpoint / MANIFEST, manifest)
    return checkpoint / MANIFEST


def read_manifest(checkpoint: Path) -> Manifest | None:
    """The manifest of `checkpoint`; None when it is missing or unreadable."""
    try:
        manifest = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))
        files: dict[str, ManifestFile] = {
            str(name): {"size": int(entry["size"]), "crc32": str(entry["crc32"])}
            for name, entry in manifest["files"].items()
        }
        return {
            "version": int(manifest["version"]),
            "time": str(manifest["time"]),
            "files": files,
            "extra": dict(manifest.get("extra", {})),
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def is_complete(checkpoint: Path) -> bool:
    """Whether `checkpoint` has its manifest and each file in it the right size; contents are not read."""
    return not _missing_or_wrong_size(checkpoint)


def verify(checkpoint: Path) -> list[Finding]:
    """All that is wrong with `checkpoint`, its files read and their checksums compared; [] when sound."""
    findings = _missing_or_wrong_size(checkpoint)
    manifest = read_manifest(checkpoint)
    if manifest is None:
        return findings
    suspect = {finding.where for finding in findings}
    names = [name for name in manifest["files"] if str(checkpoint / name) not in suspect]
    with ThreadPoolExecutor(_threads(len(names))) as pool:
        sums = pool.map(lambda name: _crc32(checkpoint / name), names)
        for name, found in zip(names, sums, strict=True):
            if found != manifest["files"][name]["crc32"]:
                findings.append(_finding(CORRUPT, "contents differ from the manifest", checkpoint / name))
    return findings


def survey(run: RunFolder) -> Survey:
    """The checkpoints of `run`: whole ones and torn ones. Contents are not read; see `verify`."""
    complete: list[tuple[int, Path]] = []
    passed_over: list[Finding] = []
    for step, path in run.checkpoints():
        findings = _missing_or_wrong_size(path)
        passed_over += findings[:1]
        if not findings:
            complete.append((step, path))
    return Survey(complete=complete, passed_over=passed_over)


def complete_checkpoints(run: RunFolder) -> list[tuple[int, Path]]:
    """Whole checkpoints of `run` as (step, path), newest first."""
    return survey(run).complete


def _missing_or_wrong_size(checkpoint: Path) -> list[Finding]:
    manifest = read_manifest(checkpoint)
    if manifest is None:
        why = "its manifest cannot be read" if (checkpoint / MANIFEST).exists() else "it has no manifest"
        return [_finding(INCOMPLETE, f"{why}, so its save never finished", checkpoint)]
    findings = []
    for name, entry in manifest["files"].items():
        path = checkpoint / name
        if not path.is_file():
            findings.append(_finding(INCOMPLETE, "the file is missing", path))
        elif (size := path.stat().st_size) != entry["size"]:
            findings.append(_finding(CORRUPT, f"{size} bytes instead of {entry['size']}", path))
    return findings


def _finding(code: str, why: str, path: Path) -> Finding:
    fix = "resume from an older checkpoint; --resume auto does so by itself"
    return Finding(level="error", code=code, message=f"{path.name}: {why}", fix=fix, where=str(path))


def _files(checkpoint: Path) -> Iterator[str]:
    """Relative paths of all files, sorted; the manifest and files on their way to it are left out."""
    for path in sorted(checkpoint.rglob("*")):
        name = path.relative_to(checkpoint).as_posix()
        if path.is_file() and name != MANIFEST and not name.startswith(f".{MANIFEST}."):
            yield name


def _entry(path: Path, durable: bool) -> ManifestFile:
    size = path.stat().st_size
    return {"size": size, "crc32": _crc32(path, durable)}


def _crc32(path: Path, durable: bool = False) -> str:
    """CRC-32 of a file as eight hexadecimal digits; zlib lets other threads run meanwhile."""
    value = 0
    buffer = bytearray(_CHUNK)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            value = zlib.crc32(view[:count], value)
        if durable:
            os.fsync(file.fileno())
    return f"{value:08x}"


def _threads(files: int) -> int:
    return max(1, min(files, cores(), _MAX_THREADS))
