"""`python -m dsrun.launch.workers.agent_process ARGS…`: `python -m torch.distributed.run ARGS…` under a supervisor.

It is torch's own agent with three differences: SIGTERM and SIGUSR1 do not end it but request a stop, which the
supervisor forwards to the ranks; the ranks die with it; and it records how they end.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import FrameType

from dsrun.launch.workers.spawn import Recorder, prefork, start_with
from dsrun.runs.stop_request import StopRequest, write_stop_file
from dsrun.system import variables
from dsrun.system.process_end import name_thread

STOPPING = (signal.SIGTERM, signal.SIGUSR1)
# For torch versions whose agent lets one choose. SIGTERM is missing: torch would end the ranks thirty seconds later, in
# the middle of a save.
TORCH_SIGNALS = "SIGINT,SIGHUP,SIGQUIT"


def install_stop_handlers() -> None:
    """From here on SIGTERM and SIGUSR1 write the stop file, which the supervisor reads."""
    file = os.environ.get(variables.STOP_FILE)
    if file:
        for signum in STOPPING:
            signal.signal(signum, _StopFileWriter(file))


class _StopFileWriter:
    def __init__(self, file: str) -> None:
        self._file = file

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        write_stop_file(Path(self._file), StopRequest.now(signal.Signals(signum).name))


def run(argv: Sequence[str], *, module: str | None = None, ranks: int = 0) -> int:
    """Be torch.distributed.run until it ends; returns its exit code.

    `ranks` processes are forked beforehand to become `python -m module`; for that, whatever they need should have been
    imported.
    """
    install_stop_handlers()
    file = os.environ.get(variables.RANKS)
    preforked = prefork(module, ranks) if module else []
    name_thread("agent")
    start_with(Recorder(Path(file) if file else None), module, preforked)
    try:
        import_module("torch.distributed.run").main(list(argv))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        # torch's way to say that a rank failed, of which the supervisor tells more in one line.
        if type(error).__name__ != "ChildFailedError":
            traceback.print_exc()
        return 1
    return 0


def main(argv: Sequence[str]) -> int:
    """The agent of ranks that are started cold."""
    return run(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
