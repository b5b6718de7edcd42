"""What one test session has made and later ones take over, as long as all that it follows from is the same."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from filelock import FileLock

COMPLETE = "complete"
_UNUSED_S = 7 * 24 * 3600


def user_cache() -> Path:
    """The folder of the user's cache that is the tests' own."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dsrun-tests"


def kept(root: Path, facts: Iterable[str], sources: Iterable[Path], fill: Callable[[Path], None]) -> Path:
    """A folder below `root` that `fill` has filled, now or in an earlier session with the same `facts` and the same
    files in `sources`, files and folders. Its path is the same then. Those that nobody has used for a week are removed.
    """
    key = digest_of(facts, sources)
    folder = root / key
    root.mkdir(parents=True, exist_ok=True)
    with FileLock(root / f"{key}.lock"):
        if not (folder / COMPLETE).exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            fill(folder)
        (folder / COMPLETE).touch()
    for each in root.glob(f"*/{COMPLETE}"):
        if each.stat().st_mtime < time.time() - _UNUSED_S:
            shutil.rmtree(each.parent, ignore_errors=True)
    return folder


def digest_of(facts: Iterable[str], sources: Iterable[Path]) -> str:
    """Over the facts, and the names and contents of all files but compiled Python. Raises FileNotFoundError."""
    digest = hashlib.sha256("\0".join(facts).encode())
    for source in sources:
        if not source.exists():
            raise FileNotFoundError(source)  # moved: what follows from it would never be made again
        files = [source] if source.is_file() else sorted(each for each in source.rglob("*") if each.is_file())
        for file in files:
            if file.suffix != ".pyc":
                digest.update(f"\0{file.relative_to(source.parent)}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:16]
