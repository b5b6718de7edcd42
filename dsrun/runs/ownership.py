"""Whether a checkpoint may be loaded: its files are pickles, and loading one runs whatever it holds."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dsrun.errors import UsageError

_ROOT = 0


def refuse_untrusted(checkpoint: Path) -> None:
    """Raise UsageError where somebody else may have written what lies in `checkpoint`.

    That is: the folder above it, the folder, or anything in it belongs to another user than this one or root, or may
    be written by everybody. A sticky folder above it, such as /tmp, is fine: others cannot rename what is in it.
    """
    why = next(_reasons(checkpoint.absolute()), None)
    if why:
        raise UsageError(
            f"{checkpoint} is not trusted: {why}; loading a checkpoint runs code that it may hold",
            fix="correct the owner or the mode (chmod -R o-w), or --trust it",
        )


def _reasons(checkpoint: Path) -> Iterator[str]:
    owners: set[int] = {os.geteuid(), _ROOT}
    asked = False
    for path, facts in _everything(checkpoint):
        if facts.st_uid not in owners and not asked:
            asked = True
            owners |= _also_me(checkpoint.parent)
        if facts.st_uid not in owners:
            yield f"{_short(path, checkpoint)} belongs to {_name(facts.st_uid)}"
        if facts.st_mode & stat.S_IWOTH and not facts.st_mode & stat.S_ISVTX:
            yield f"everybody may write to {_short(path, checkpoint)}"


def _everything(checkpoint: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """The folder above, the folder and all in it, and their owners and modes; of a link also what it leads to."""
    yield checkpoint.parent, checkpoint.parent.stat()
    yield checkpoint, checkpoint.stat()
    seen: set[Path] = set()
    waiting = [checkpoint]
    while waiting:
        folder = waiting.pop()
        if folder.resolve() in seen:
            continue
        seen.add(folder.resolve())
        for path in sorted(folder.iterdir()):
            if path.is_symlink():
                own = path.lstat()
                # Linux gives every link the mode rwxrwxrwx, which means nothing.
                yield path, os.stat_result((stat.S_IFLNK, *tuple(own)[1:10]))
            if path.exists():
                yield path, path.stat()
            if path.is_dir():
                waiting.append(path)


def _also_me(folder: Path) -> set[int]:
    """The owner that a file gets which this process makes in `folder`: NFS and containers map users to others."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".owner.") as probe:
            return {os.fstat(probe.fileno()).st_uid}
    except OSError:
        return set()


def _short(path: Path, checkpoint: Path) -> str:
    return str(path.relative_to(checkpoint)) if checkpoint in path.parents else str(path)


def _name(uid: int) -> str:
    import pwd

    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"
