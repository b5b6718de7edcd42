"""Finished wheels by what went into them. Entries are written atomically.

    ROOT/KEY/NAME.whl   ROOT/KEY/WHEEL.json   ROOT/KEY/build.log   ROOT/KEY.lock

Under the lock of its key a wheel is built beside the entry, checked, and then renamed into place."""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from dsrun.errors import MissingError, UsageError
from dsrun.refusals import Refusals
from dsrun.runs.records import sync_file
from dsrun.system.files import parse_json, replace_folder, replacing, sha256_of
from dsrun.wheel.compile.build_environment import WheelRequest
from dsrun.wheel.verify.contents import WheelReport

RECORD_NAME = "WHEEL.json"
VERSION = 1


def make_record(
    request: WheelRequest,
    report: WheelReport,
    *,
    seconds: Mapping[str, float],
    by_process: Mapping[str, float],
    started: str,
) -> dict[str, Any]:
    """The contents of WHEEL.json. `seconds`: wall-clock seconds by phase, `by_process`: by compiling process (named
    after its operations); `started`: ISO 8601."""

    def rounded(seconds: Mapping[str, float]) -> dict[str, float]:
        return {name: round(value, 1) for name, value in seconds.items()}

    return {
        "version": VERSION,
        "wheel": report.path.name,
        "sha256": report.sha256,
        "size": report.size,
        "key": request.key,
        "inputs": request.as_dict(),
        "ops": {"asked": list(request.ops), "built": sorted(report.installed_ops)},
        "libraries": [
            {name: getattr(library, name) for name in ("path", "op", "size", "sass", "ptx")}
            for library in report.libraries
        ],
        "started": started,
        "seconds": rounded(seconds) | {"builds": rounded(by_process)},
    }


def write_record(folder: Path, record: Mapping[str, Any]) -> None:
    (folder / RECORD_NAME).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def read_record(folder: Path) -> dict[str, Any] | None:
    """WHEEL.json of `folder`; None when it is missing, unreadable or of another version."""
    try:
        found = parse_json((folder / RECORD_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("version") != VERSION:
        return None
    return found if all(isinstance(found.get(name), str) for name in ("wheel", "sha256")) else None


def size_of(path: Path) -> int:
    """Bytes in a file, or in all files of a folder."""
    return sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())


def wrong_with(folder: Path) -> str | None:
    """What is wrong with the wheel beside WHEEL.json in `folder`; None when its SHA-256 is the one recorded."""
    record = read_record(folder)
    if record is None:
        return f"{RECORD_NAME} is missing or unreadable"
    wheel = folder / Path(record["wheel"]).name
    try:
        same = sha256_of(wheel) == record["sha256"]
    except OSError as error:
        return f"{wheel.name} cannot be read: {error.strerror or error}"
    return None if same else f"{wheel.name} is not the file that was stored"


LOG_NAME = "build.log"


class WheelCache:
    """The wheels below `root`, each in one folder with its record and the log of its build."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, key: str) -> Path:
        return self.root / key

    def find(self, key: str, damaged: Callable[[str], None] = lambda _: None) -> Path | None:
        """The wheel of `key`, read and compared with the recorded SHA-256; it counts as used now.

        None when it is missing or damaged; `damaged` is then called with the problem."""
        folder = self.folder(key)
        if not folder.is_dir():
            return None
        wrong = wrong_with(folder)
        if wrong:
            damaged(wrong)
            return None
        with suppress(OSError):  # a store that others may only read
            os.utime(folder)
        return _wheel_in(folder)

    @contextmanager
    def exclusive(self, key: str, waiting: Callable[[], None]) -> Iterator[None]:
        """Hold the lock of `key`, which ends with the process; `waiting` is called once when another process has it.

        Raises MissingError when the store cannot be written."""
        lock = FileLock(str(self.root / f"{key}.lock"))
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                waiting()
                lock.acquire()
        except OSError as error:
            what = f"the store {self.root} cannot be written: {error.strerror or error}"
            raise MissingError(what, fix="set DSRUN_CACHE to a writable folder") from error
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def staging(self, key: str) -> Iterator[Path]:
        """An empty folder beside the entry of `key`, gone afterwards unless `publish` took it. Hold the lock.

        Others of this key belong to processes that are dead: their leftovers are removed."""
        for left_over in self.root.glob(f".{key}.*"):
            shutil.rmtree(left_over, ignore_errors=True)
        folder = self.root / f".{key}.{os.getpid()}"
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def publish(self, key: str, staged: Path) -> Path:
        """Make `staged`, which holds a wheel and its WHEEL.json, the entry of `key`; its wheel. Hold the lock.

        Everything is on the disk before the rename makes it visible. Raises OSError."""
        for path in (*staged.iterdir(), staged):
            sync_file(path)
        folder = self.folder(key)
        replace_folder(staged, folder)
        sync_file(self.root)
        return _wheel_in(folder)

    def unused(self, days: float) -> list[Path]:
        """Entries, parts of wheels and logs of failed builds that nobody has used for `days` days, oldest first."""
        before = time.time() - days * 86400
        found = [*self.root.glob(f"*/{RECORD_NAME}"), *self.root.glob("parts/*.whl"), *self.root.glob("*.failed.log")]
        paths = [path.parent if path.name == RECORD_NAME else path for path in found]
        return sorted((each for each in paths if each.stat().st_mtime <= before), key=lambda each: each.stat().st_mtime)

    def remove(self, path: Path) -> int:
        """Remove what `unused` found; the bytes that it had. 0 when a build of this key runs. Raises OSError."""
        size = size_of(path)
        if path.is_file():
            path.unlink(missing_ok=True)
            return size
        with suppress(Timeout), FileLock(str(self.root / f"{path.name}.lock"), timeout=0):
            shutil.rmtree(path)
            return size
        return 0


def copy_out(stored: Path, into: Path, *, force: bool = False) -> Path:
    """Copy the stored wheel, its WHEEL.json and log into the folder `into`, each atomically; returns the wheel there.

    A different wheel of that name, or the record of another existing one, is replaced only with `force`: UsageError,
    before anything is written."""
    wheel, record = into / stored.name, None if force else read_record(into)
    if not force and wheel.exists() and (not wheel.is_file() or sha256_of(wheel) != sha256_of(stored)):
        raise UsageError(f"{wheel} exists and is another file", fix="give another -o, or --force")
    if record and record["wheel"] != stored.name and (into / Path(record["wheel"]).name).exists():
        raise Refusals(__file__, "refusals.toml").error("copy.other", record=into / RECORD_NAME, wheel=record["wheel"])
    try:
        into.mkdir(parents=True, exist_ok=True)
        for name in (stored.name, RECORD_NAME, LOG_NAME):
            # A copy and no hard link: whoever edits it would edit the store.
            with replacing(into / name) as partial:
                shutil.copyfile(stored.with_name(name), partial)
    except OSError as error:
        raise UsageError(f"cannot write to {into}: {error.strerror or error}", fix="give another -o") from error
    return wheel


def _wheel_in(folder: Path) -> Path:
    record = read_record(folder)
    assert record is not None  # wrong_with() has just read it
    return folder / Path(record["wheel"]).name
