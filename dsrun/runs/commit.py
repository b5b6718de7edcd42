"""Checkpoints that are complete or invisible: written in a hidden folder, shown by one rename.

RUN/.saving/checkpoint-N     a save under way, or one whose run died
RUN/.saving/replaced-N       what stood at checkpoint-N, while the new one takes its place where names cannot be swapped
RUN/.saving/deleted-N        on its way out
RUN/set-aside/checkpoint-N   passed over: damaged, or of a course that training did not go on with
RUN/.universal/checkpoint-N  one in a form for another number of ranks, until the next save"""

import re
import time
from contextlib import suppress
from pathlib import Path

from dsrun.runs.folder import RunFolder
from dsrun.runs.manifest import is_complete
from dsrun.runs.records import fsync_folder
from dsrun.system.files import delete_tree, replace_folder

HIDDEN = ".saving"
ASIDE = "set-aside"
CONVERTED = ".universal"
_UNDER_WAY = re.compile(r"checkpoint-(\d+)")
_REPLACED = re.compile(r"replaced-(\d+)")


def hidden(run: RunFolder, step: int) -> Path:
    """Where the checkpoint of `step` is written before it is shown."""
    return run.path / HIDDEN / f"checkpoint-{step}"


def begin(run: RunFolder, step: int) -> Path:
    """An empty hidden folder for the checkpoint of `step`. Raises OSError."""
    folder = hidden(run, step)
    if folder.exists():
        # Renamed first: what cannot be deleted, such as NFS's .nfs files, must not end in the new checkpoint.
        # Under a name of its own, as an earlier one of this step may lie there still.
        folder.rename(folder.with_name(f"deleted-{step}-{time.time_ns()}"))
    folder.mkdir(parents=True)
    for name in folder.parent.glob("deleted-*"):
        delete_tree(name)
    return folder


def discard(run: RunFolder, step: int) -> None:
    """Remove what was written of a save that failed, also where another rank still writes to it."""
    folder = hidden(run, step)
    with suppress(OSError):
        # Renamed first, or what is still to be written would come after the removal of the rest.
        folder = folder.rename(folder.with_name(f"deleted-{step}"))
    delete_tree(folder)


def commit(run: RunFolder, step: int) -> Path:
    """Show the hidden checkpoint of `step`, whose manifest is written; returns its path. Raises OSError.

    One that is there already is replaced in a single step where the file system can swap two names, and else moved
    into the hidden folder first, where `tidy` finds it should this process die in between."""
    source, target = hidden(run, step), run.checkpoint(step)
    fsync_folder(source.parent)
    try:
        replace_folder(source, target, aside=run.path / HIDDEN / f"replaced-{step}")
    except FileNotFoundError:
        # NFS repeats a request whose answer was lost, and then finds that it was carried out.
        if not is_complete(target):
            raise
    fsync_folder(run.path)
    return target


def tidy(run: RunFolder) -> list[str]:
    """Clean up after runs that died while saving; returns a line for each step. For the holder of the run's lock.

    A checkpoint that was whole and not yet shown is shown now; everything else in the hidden folder is deleted."""
    folder = run.path / HIDDEN
    lines = []
    # In this order: what was replaced comes back only where what should replace it is not whole.
    for pattern in (_UNDER_WAY, _REPLACED):
        for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
            match = pattern.fullmatch(entry.name)
            if match and is_complete(entry) and not is_complete(run.checkpoint(int(match[1]))):
                step = int(match[1])
                if pattern is _REPLACED:
                    entry.rename(hidden(run, step))
                commit(run, step)
                lines.append(f"checkpoint-{step} was whole, and is visible now; its run had died just before")
    leftovers = sorted(folder.iterdir()) if folder.is_dir() else []
    lines += [
        f"removed what was written of {left.name} when its run died"
        for left in leftovers
        if _UNDER_WAY.fullmatch(left.name)
    ]
    delete_tree(folder)
    return lines


def leave(run: RunFolder) -> None:
    """Remove the hidden folder when nothing is in it any more."""
    with suppress(OSError):
        (run.path / HIDDEN).rmdir()


def hide(run: RunFolder, step: int) -> Path:
    """Make the checkpoint of `step` invisible in one step, before its files are deleted; returns where it lies now."""
    return _moved(run, step, run.path / HIDDEN / f"deleted-{step}")


def set_aside(run: RunFolder, step: int) -> Path:
    """Move the checkpoint of `step` out of the way of a run that goes on from an older one; returns its new place."""
    return _moved(run, step, run.path / ASIDE / f"checkpoint-{step}")


def _moved(run: RunFolder, step: int, place: Path) -> Path:
    place.parent.mkdir(exist_ok=True)
    delete_tree(place)
    run.checkpoint(step).rename(place)
    fsync_folder(run.path)
    return place


def superfluous(steps: list[int], *, keep: int, protected: set[int]) -> list[int]:
    """The complete checkpoints to delete, oldest first: all but the newest `keep` and the protected ones.

    The newest is never among them, so that what the last save wrote stays whatever `keep` says."""
    newest = set(sorted(steps)[-max(1, keep) :])
    return sorted(step for step in steps if step not in newest | protected)
