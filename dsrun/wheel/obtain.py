"""A wheel for a job: the stored one when there is one, else built, checked and stored."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from dsrun.errors import ToolError
from dsrun.wheel.build import Job, build_wheel
from dsrun.wheel.follow import Watch
from dsrun.wheel.scratch import build_folder

if TYPE_CHECKING:
    from dsrun.wheel.store import Entry, Store


def obtain(
    job: Job,
    store: Store,
    *,
    environ: Mapping[str, str],
    say: Callable[[str], None],
    watch: Watch,
    force: bool = False,
    keep: bool = False,
) -> Entry:
    """The entry of `job` in `store`, whose wheel is read and compared with its recorded hash.

    Of two processes that want the same wheel one builds it and the other waits for it. `force`: build again what is
    stored, but take what another process has built in the meantime. `keep`: leave the folder it is compiled in.
    Raises ToolError when the build fails, MissingError when the store cannot be written.
    """
    key = job.request.key
    waited = False

    def damaged(why: str) -> None:
        say(f"the stored wheel is damaged and is built again: {why}")

    def waiting() -> None:
        nonlocal waited
        waited = True
        say("another process is building this wheel; waiting for it")

    stored = None if force else store.find(key)
    if stored:
        return stored
    with store.exclusive(key, waiting):
        stored = store.find(key, damaged) if waited or not force else None
        return stored or _built(job, store, environ=environ, say=say, watch=watch, keep=keep)


def _built(
    job: Job,
    store: Store,
    *,
    environ: Mapping[str, str],
    say: Callable[[str], None],
    watch: Watch,
    keep: bool,
) -> Entry:
    key = job.request.key
    failed_log = store.root / f"{key}.failed.log"
    with store.staging(key) as staged, build_folder(key, keep=keep) as folder:
        if keep:
            say(f"compiled in {folder}, which is kept")
        build_wheel(job, folder, staged, environ=environ, watch=watch, failed_log=failed_log)
        try:
            entry = store.publish(key, staged)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise ToolError(
                f"the wheel could not be stored in {store.root}: {error.strerror or error}",
                fix="make room, or point DSRUN_CACHE to another disk" if full else "start the build again",
            ) from error
    failed_log.unlink(missing_ok=True)
    return entry
