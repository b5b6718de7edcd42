"""A folder of sources: which files count, what they amount to, and a copy of them that is ours."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from dsrun.errors import UsageError

# What building and running leave in a tree.
_LEFT_FOLDERS = frozenset(
    {".git", "__pycache__", "build", "dist", ".pytest_cache", ".mypy_cache", ".tox", ".venv"}
)
_LEFT_SUFFIXES = (".egg-info", ".pyc", ".o", ".whl")
# setup.py writes these two on every build.
_WRITTEN = frozenset({"build.txt", "deepspeed/git_version_info_installed.py"})


def tree_files(root: Path) -> Iterator[Path]:
    """The source files under `root`, relative to it: without what building and running leave behind."""
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(
            name for name in folders if name not in _LEFT_FOLDERS and not name.endswith(_LEFT_SUFFIXES)
        )
        here = Path(folder)
        # os.walk counts a link to a folder among the folders and does not enter it.
        linked = [name for name in folders if (here / name).is_symlink()]
        for name in sorted([*files, *linked]):
            if not name.endswith(_LEFT_SUFFIXES) and not _compiled(here / name):
                yield (here / name).relative_to(root)


def _compiled(path: Path) -> bool:
    """A library built in place; those that upstream ships lie in folders called libs."""
    return path.suffix == ".so" and path.parent.name != "libs"


def tree_digest(root: Path, files: Iterable[Path]) -> str:
    """SHA-256 over names, contents, executable bits and link targets of `files` under `root`: "sha256:…"."""
    total = hashlib.sha256()
    for name in sorted(files):
        if name.as_posix() in _WRITTEN:
            continue
        path = root / name
        if path.is_symlink():
            kind, content = "link", os.fsencode(path.readlink())
        else:
            kind, content = _kind(path), _content(path)
        total.update(f"{kind} {len(os.fsencode(name))} {len(content)}\n".encode())
        total.update(os.fsencode(name))
        total.update(content)
    return f"sha256:{total.hexdigest()}"


def _kind(path: Path) -> str:
    return "program" if path.stat().st_mode & stat.S_IXUSR else "file"


def _content(path: Path) -> bytes:
    if not path.is_file():
        raise UsageError(
            f"{path} is neither a file nor a folder nor a link", fix="take it out of the source tree"
        )
    return path.read_bytes()


def check_links(root: Path, files: Iterable[Path]) -> None:
    """Raises UsageError for a link among `files` that leads out of `root`: its target is not part of the digest."""
    inside = root.resolve()
    for name in files:
        path = root / name
        if path.is_symlink() and not path.resolve().is_relative_to(inside):
            raise UsageError(
                f"{path} is a link that leads out of the source tree", fix="replace it by what it means"
            )


def copy_tree(root: Path, files: Sequence[Path], into: Path) -> None:
    """Copy `files` of `root` into the new folder `into`, links as links. Raises UsageError as `check_links` does."""
    check_links(root, files)
    for name in files:
        target = into / name
        if name.as_posix() not in _WRITTEN:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target, follow_symlinks=False)
