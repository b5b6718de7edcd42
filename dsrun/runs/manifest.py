"""Which checkpoints are whole: a manifest of sizes and checksums, written after everything else."""

import json
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from dsrun.findings.finding import Finding, finding_of, text_of
from dsrun.messages import joined
from dsrun.runs.checksum import PATIENCE_S, ChecksumPool, ManifestFile, sum_of, threads
from dsrun.runs.folder import RunFolder
from dsrun.runs.records import fsync_folder, plain, utc_now, write_json_atomic
from dsrun.system.files import parse_json, read_bytes

MANIFEST = "manifest.json"
# Of the Trainer, in every checkpoint.
STATE_FILE = "trainer_state.json"
MANIFEST_VERSION = 1


class CheckpointManifest(TypedDict):
    """manifest.json of a checkpoint."""

    version: int
    time: str
    files: dict[str, ManifestFile]  # by path relative to the checkpoint, with /
    extra: dict[str, Any]  # what the writer adds, such as step and world_size
    crc32: NotRequired[str]  # of the other keys as compact, sorted JSON; missing before dsrun 0.2


@dataclass(frozen=True)
class FileDamage:
    """What is wrong with a file of a checkpoint; `name` is its path below the checkpoint, "" for the whole of it."""

    name: str
    finding: Finding

    def __str__(self) -> str:
        """For words that name the checkpoint themselves."""
        return f"{self.name}: {self.finding.message}" if self.name else self.finding.message

    @property
    def named(self) -> Finding:
        """The finding with the file's name in its message too, as JSON has it."""
        name = Path(self.finding.where).name
        return replace(self.finding, message=joined(": ", [name, self.finding.message]))


def write_manifest(
    checkpoint: Path, extra: Mapping[str, Any], *, sealed: Mapping[str, ManifestFile] | None = None
) -> Path:
    """List every file of `checkpoint` with size and CRC-32 in its manifest, and return the manifest's path.

    Call it on one process, after all ranks have written. `sealed` are files that were summed and brought to the disk
    before; the others are read here. All files are on disk before the manifest says so: a power cut cannot leave a
    manifest without its files. crc32 finds damage, not malice, and costs under a tenth of a save
    where sha256 costs up to half. Raises OSError."""
    files = dict(sealed or {})
    pool = ChecksumPool(checkpoint)
    try:
        pool.add(*(checkpoint / name for name in _files(checkpoint) if name not in files))
        files |= pool.result()
    finally:
        pool.close()
    # Every folder, as one may hold nothing but folders.
    for folder in (checkpoint, *(path for path in sorted(checkpoint.rglob("*")) if path.is_dir())):
        fsync_folder(folder)
    listed = {name: files[name] for name in sorted(files)}
    content = plain({"version": MANIFEST_VERSION, "time": utc_now(), "files": listed, "extra": dict(extra)})
    write_json_atomic(checkpoint / MANIFEST, {**content, "crc32": _own_sum(content)})
    return checkpoint / MANIFEST


def read_manifest(checkpoint: Path) -> CheckpointManifest | None:
    """The manifest of `checkpoint`; None when it is missing, cannot be read, or differs from its own checksum."""
    try:
        manifest = parse_json(read_bytes(checkpoint / MANIFEST))
        if manifest.get("crc32", _own_sum(manifest)) != _own_sum(manifest):
            return None
        files: dict[str, ManifestFile] = {
            str(name): {"size": int(entry["size"]), "crc32": str(entry["crc32"])}
            for name, entry in manifest["files"].items()
        }
        version, time, extra = int(manifest["version"]), str(manifest["time"]), dict(manifest.get("extra", {}))
        return {"version": version, "time": time, "files": files, "extra": extra}
    except (OSError, ValueError, OverflowError, KeyError, TypeError, AttributeError):
        return None


def is_complete(checkpoint: Path) -> bool:
    """Whether `checkpoint` has its manifest and each file in it the right size; contents are not read."""
    return not missing_or_wrong_size(checkpoint)


def verify(checkpoint: Path, *, beat: Callable[[], None] = lambda: None) -> list[FileDamage]:
    """All that is wrong with `checkpoint`, its files read and their checksums compared; [] when sound.

    `beat` is called every few seconds."""
    manifest = read_manifest(checkpoint)
    found = missing_or_wrong_size(checkpoint, manifest)
    suspect = {each.name for each in found}
    files = manifest["files"] if manifest else {}
    sound = {name: entry for name, entry in files.items() if name not in suspect}
    return found + damaged(checkpoint, sound, beat=beat)


def shared_out(files: Mapping[str, ManifestFile], parts: int) -> list[dict[str, ManifestFile]]:
    """The files in `parts` shares of about the same number of bytes."""
    names = sorted(files, key=lambda name: (-files[name]["size"], name))
    return [{name: files[name] for name in names[part::parts]} for part in range(parts)]


def damaged(
    checkpoint: Path, files: Mapping[str, ManifestFile], *, beat: Callable[[], None] = lambda: None
) -> list[FileDamage]:
    """Those of the files whose contents are not what was saved. `beat` is called every few seconds."""
    with ThreadPoolExecutor(threads(len(files))) as pool:
        tasks = [pool.submit(_differs, checkpoint, name, entry) for name, entry in files.items()]
        while wait(tasks, timeout=PATIENCE_S).not_done:
            beat()
        return [found for task in tasks if (found := task.result())]


def _differs(checkpoint: Path, name: str, saved: ManifestFile) -> FileDamage | None:
    """What is wrong with a file's contents; None when they are those that were saved."""
    try:
        found = sum_of(checkpoint / name)
    except OSError as error:
        return _damage(checkpoint, name, "checkpoint_corrupt.unreadable", reason=error.strerror)
    return None if found == saved else _damage(checkpoint, name, "checkpoint_corrupt.differs")


def complete_checkpoints(run: RunFolder) -> list[tuple[int, Path]]:
    """Whole checkpoints of `run` as (step, path), newest first. Contents are not read; see `verify`."""
    return [(step, path) for step, path in run.checkpoints() if is_complete(path)]


def newest_complete(run: RunFolder) -> tuple[int, Path] | None:
    """The newest whole checkpoint of `run` as (step, path). Older ones are not looked at."""
    return next(((step, path) for step, path in run.checkpoints() if is_complete(path)), None)


def missing_or_wrong_size(checkpoint: Path, manifest: CheckpointManifest | None = None) -> list[FileDamage]:
    """What is wrong with `checkpoint`: missing files and wrong sizes; contents are not read.

    `manifest` is its manifest, if that has been read already."""
    manifest = manifest or read_manifest(checkpoint)
    if manifest is None:
        unreadable = (checkpoint / MANIFEST).exists()
        key = "checkpoint_incomplete.bad_manifest" if unreadable else "checkpoint_incomplete.no_manifest"
        return [_damage(checkpoint, "", key)]
    found = []
    for name, entry in manifest["files"].items():
        size = _size(checkpoint / name)
        if size is None:
            found.append(_damage(checkpoint, name, "checkpoint_incomplete.no_file"))
        elif size != entry["size"]:
            found.append(_damage(checkpoint, name, "checkpoint_corrupt.size", size=size, saved=entry["size"]))
    return found


def _damage(checkpoint: Path, name: str, key: str, **values: Any) -> FileDamage:
    where = str(checkpoint / name)
    return FileDamage(name, finding_of(key, where=where, fix=text_of("checkpoint.older"), **values))


def _size(file: Path) -> int | None:
    """The size in bytes of a regular file; None if there is none."""
    try:
        found = file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _files(checkpoint: Path) -> Iterator[str]:
    """Relative paths of all files, sorted; the manifest and files on their way to it are left out."""
    for path in sorted(checkpoint.rglob("*")):
        name = path.relative_to(checkpoint).as_posix()
        # A file that is deleted while somebody has it open stays for a while as .nfsX on NFS.
        if path.is_file() and name != MANIFEST and not path.name.startswith((f".{MANIFEST}.", ".nfs")):
            yield name


def _own_sum(manifest: Mapping[str, Any]) -> str:
    """CRC-32 of the manifest's other keys, so that damage to the manifest itself shows."""
    rest = {key: value for key, value in manifest.items() if key != "crc32"}
    text = json.dumps(rest, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return f"{zlib.crc32(text.encode()):08x}"
