"""A supervisor that was started on this machine over ssh, tied by its stdin to the one who started it.

ssh passes no signals on and leaves what it started running when it dies. So the words come over stdin: first one JSON
object with the environment, which no other user can read there, then one per signal. The end of stdin means that the
one who started it, or the way to it, is gone: everything here ends at once, and for the other nodes this one is lost.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

from dsrun.errors import UsageError

FLAG = "--tied"


def greeting(variables: Mapping[str, str]) -> bytes:
    """The first line for a tied supervisor."""
    return json.dumps({"env": dict(variables)}).encode() + b"\n"


def signal_line(signum: int) -> bytes:
    """The line that has a tied supervisor get a signal."""
    return json.dumps({"signal": signal.Signals(signum).name}).encode() + b"\n"


def take_hold() -> None:
    """Take the environment from stdin and obey it from here on; stdin itself is empty afterwards.

    Raises UsageError when stdin holds something else.
    """
    control = os.fdopen(os.dup(0), "rb", buffering=0)
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    line = control.readline()
    try:
        variables = json.loads(line)["env"]
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{FLAG} is for dsrun launch itself, which starts supervisors over ssh") from None
    os.environ.update({str(name): str(value) for name, value in variables.items()})
    threading.Thread(target=_obey, args=(control,), name="tie", daemon=True).start()


def _obey(control: IO[bytes]) -> None:
    with suppress(OSError):  # sshd's socket tells of a reset where sshd died with something unread
        for line in control:
            signum = _signal(line)
            if signum:
                _send(signum)
    # Not SIGTERM, which would ask all nodes to stop: this one is lost, and its guard ends what it leaves.
    os.kill(os.getpid(), signal.SIGKILL)


def _signal(line: bytes) -> int | None:
    try:
        return signal.Signals[json.loads(line)["signal"]]
    except (ValueError, KeyError, TypeError):
        return None


def _send(signum: int) -> None:
    # To the main thread, whose waiting it interrupts; os.kill would leave the choice of the thread to the kernel.
    signal.pthread_kill(threading.main_thread().ident or 0, signum)
