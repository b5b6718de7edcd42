"""Many runs at a glance: the status of each from the ends of its files, and its size on disk."""

import os
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsrun.errors import UsageError
from dsrun.monitoring.run_status import RunStatus, status_of
from dsrun.runs.folder import is_run, runs_below
from dsrun.runs.reader import UnreadableRun, read_history
from dsrun.system.terminal.stderr import print_note

_AT_ONCE = 8
"""Runs are looked at side by side: on a parallel file system the time goes into waiting for it."""


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """One run of a folder; `name` is its path below that folder, `bytes` what its files take, None if not asked for."""

    name: str
    path: Path
    status: RunStatus
    gpus: tuple[str, ...] = ()
    bytes: int | None = None


def runs_of(folder: Path, *, with_size: bool = True) -> list[RunRow]:
    """The runs in `folder` and its sub-folders, and itself if it is one, by their names. One that cannot be read is
    left out, with a note.

    Raises UsageError where there is no such folder, or no run in it."""
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise UsageError(f"{folder} {what}", fix="give a folder with the --output of several dsrun train")
    paths = [folder] if is_run(folder) else runs_below(folder)
    if not paths:
        raise UsageError(f"{folder} contains no runs", fix="give a folder with the --output of several dsrun train")
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = list(pool.map(lambda path: _row(path, folder, with_size=with_size), paths))
    return [row for row in found if row is not None]


def _row(path: Path, folder: Path, *, with_size: bool) -> RunRow | None:
    try:
        history = read_history(path, "newest")
    except UnreadableRun as error:
        print_note(f"{path} is left out: {error}")
        return None
    except UsageError:  # it has been removed meanwhile, or another program left a lock file there
        return None
    gpus = history.run.get("gpus")
    return RunRow(
        name=path.name if path == folder else str(path.relative_to(folder)),
        path=path,
        status=status_of(history, lock_tries=1),
        gpus=tuple(str(name) for name in gpus) if isinstance(gpus, list) else (),
        bytes=size_on_disk(path) if with_size else None,
    )


def size_on_disk(folder: Path) -> int:
    """Bytes that the files below `folder` take on the disk, those with several names once; links are not followed."""
    blocks: dict[tuple[int, int], int] = {}
    with suppress(OSError):  # removed meanwhile
        for _, folders, files, within in os.fwalk(folder):
            for name in (*folders, *files):
                with suppress(OSError):
                    found = os.stat(name, dir_fd=within, follow_symlinks=False)
                    if not stat.S_ISDIR(found.st_mode):
                        blocks[found.st_dev, found.st_ino] = found.st_blocks
    # In units of 512 bytes, whatever the file system's blocks are (stat(2)).
    return 512 * sum(blocks.values())


SORTS = ("name", "state", "step", "loss", "best", "age", "duration", "size")


def sort_rows(rows: Sequence[RunRow], by: str) -> list[RunRow]:
    """The rows in the order of one of SORTS: text from a to z, losses and ages from small, all else from large.

    What is not known comes last."""
    known = [(value, row.name, row) for row in rows if (value := _key(row, by)) is not None]
    unknown = [row for row in rows if _key(row, by) is None]
    return [*(row for _, _, row in sorted(known, key=lambda each: each[:2])), *unknown]


def _key(row: RunRow, by: str) -> Any:
    status = row.status
    falling = {"step": status.step, "duration": status.since_s, "size": row.bytes}
    if by in falling:
        return None if (value := falling[by]) is None else -value
    best = None if status.best is None else status.best.rank
    return {"name": row.name, "state": status.state, "loss": status.loss, "best": best, "age": status.silent_s}[by]
