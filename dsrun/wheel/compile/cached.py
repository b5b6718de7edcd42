"""A wheel for a request: the cached one, else built, checked and cached."""

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dsrun.errors import ToolError
from dsrun.system.files import DISK_FULL
from dsrun.system.process.scratch import scratch_folder
from dsrun.wheel.cache import LOG_NAME, WheelCache
from dsrun.wheel.compile.compile_wheel import WheelBuild, WheelParts, build_wheel
from dsrun.wheel.compile.failure import explaining
from dsrun.wheel.compile.output import OnEvent
from dsrun.wheel.find_links import take_from

PREFIX = "dsrun-wheel-"
_MAKE_ROOM = "make room, or point DSRUN_CACHE to another disk"
_PLAIN = re.compile(r"[\w./+-]+", re.ASCII)


def build_root() -> Path:
    """Where folders of builds are made: the system's temporary folder (TMPDIR).

    setuptools splits CC at spaces and torch passes it on as it is, so it cannot be quoted: a temporary folder whose
    path would need quotes is replaced by /tmp."""
    root = tempfile.gettempdir()
    return Path(root if _PLAIN.fullmatch(root) else "/tmp")


def cached_build(
    build: WheelBuild,
    store: WheelCache,
    *,
    environ: Mapping[str, str],
    notify: Callable[[str], None],
    on_event: OnEvent,
    find_links: Sequence[str] = (),
    force: bool = False,
    keep: bool = False,
) -> Path:
    """The wheel of `build` in `store`, read and compared with its recorded hash.

    Of two processes that need the same wheel one builds it and the other waits. `force`: rebuild a cached wheel, but
    take one that another process has built in the meantime. `find_links`: where to look for it before it is built.
    `keep`: keep the build folder. Raises ToolError when the build fails, MissingError when the store cannot be written.
    """
    key = build.request.key
    waited = False

    def report_wait() -> None:
        nonlocal waited
        waited = True
        notify("another process is building this wheel; waiting for it")

    stored = None if force else store.find(key)
    if stored:
        return stored
    with store.exclusive(key, report_wait):
        damaged = "the stored wheel is damaged and is built again: {}".format
        stored = store.find(key, lambda why: notify(damaged(why))) if waited or not force else None
        if stored:
            return stored
        failed_log = store.root / f"{key}.failed.log"
        with store.staging(key) as staged:
            if force or not any(take_from(place, build, staged, notify) for place in find_links):
                parts = WheelParts(store.root / "parts", reuse=not force)
                with (
                    scratch_folder(f"{PREFIX}{key}-", build_root(), keep=keep) as folder,
                    explaining(folder, staged / LOG_NAME, failed_log),
                ):
                    if keep:
                        notify(f"compiled in {folder}, which is kept")
                    build_wheel(build, folder, staged, parts=parts, environ=environ, on_event=on_event)
            try:
                entry = store.publish(key, staged)
            except OSError as error:
                raise ToolError(
                    f"the wheel could not be stored in {store.root}: {error.strerror or error}",
                    fix=_MAKE_ROOM if error.errno in DISK_FULL else "start the build again",
                ) from error
        failed_log.unlink(missing_ok=True)
        return entry
