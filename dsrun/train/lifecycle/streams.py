"""Where a worker's words go: everything that libraries print goes into the rank's log, only dsrun talks to the user."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from pathlib import Path
from typing import TextIO

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def open_console(channel: str | None) -> TextIO:
    """The way to the user: the launcher's pipe `channel`, else a copy of the stderr this process was started with."""
    if channel:
        return Path(channel).open("w", encoding="utf-8", buffering=1)
    return os.fdopen(os.dup(2), "w", encoding="utf-8", buffering=1)


def send_output_to(log: Path, *, echo: bool = False) -> None:
    """Point stdout and stderr, those of C++ libraries included, to `log`; logging lines there carry the time.

    With `echo` (--debug) the terminal keeps everything and only the logging module's lines go to the file as well.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    handlers: list[logging.Handler] = [logging.FileHandler(log)] if echo else []
    if not echo:
        fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for target in (1, 2):
            os.dup2(fd, target)
        os.close(fd)
        sys.stdout.reconfigure(line_buffering=True)
    handlers.append(logging.StreamHandler(sys.stderr))
    logging.basicConfig(
        format=LOG_FORMAT, level=logging.DEBUG if echo else logging.INFO, handlers=handlers, force=True
    )
    # These report every HTTP request and file lock at INFO and DEBUG.
    for chatty in ("httpx", "httpcore", "filelock", "urllib3", "fsspec", "matplotlib", "numexpr"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    logging.captureWarnings(True)
    warnings.simplefilter("default" if echo else "once")
