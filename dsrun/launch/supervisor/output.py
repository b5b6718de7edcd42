"""Words to the user from one who has no time to wait until they are taken."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue


class Voice:
    """Says lines one after the other, in a thread of its own.

    A terminal may take nothing for hours (Ctrl-S, a pager, a connection that is gone), while ranks have to be watched
    and started again. At the end of the `with` block lines that have not been taken are waited for, for `patience_s`
    seconds.
    """

    def __init__(self, say: Callable[[str], None], *, patience_s: float) -> None:
        self._say = say
        self._patience_s = patience_s
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._speak, name="voice", daemon=True)

    def __enter__(self) -> Voice:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.put(None)
        self._thread.join(timeout=self._patience_s)

    def __call__(self, line: str) -> None:
        self._lines.put(line)

    def _speak(self) -> None:
        while (line := self._lines.get()) is not None:
            with suppress(OSError):  # nobody listens any more
                self._say(line)
