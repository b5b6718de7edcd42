"""`python -m tests.reaper FD`: waits until a test session is gone, however it ended, and kills what is left of it.

A session is known by a variable that all its processes inherit. FD is the end of a pipe that the session holds open.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

from dsrun.launch.supervisor import reaper

VARIABLE = "PYTEST_SESSION_MARK"


class Reaper:
    """Started before anything else of a session: marks the environment of this process, and with it the session."""

    def __init__(self) -> None:
        os.environ[VARIABLE] = uuid.uuid4().hex
        read, self._write = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.reaper", str(read)],
            cwd=Path(__file__).parents[1],
            pass_fds=(read,),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(read)

    def finish(self) -> None:
        """The session is over: return when nothing of it is left."""
        os.close(self._write)
        self._process.wait()


def main(fd: int) -> None:
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    while os.read(fd, 4096):
        pass
    reaper.VARIABLE = f"{VARIABLE}=".encode()
    reaper.end(os.environ[VARIABLE])


if __name__ == "__main__":
    main(int(sys.argv[1]))
