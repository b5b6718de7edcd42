"""--log-format json: the events of a run on stderr, as its ranks and supervisors write them into the ledger."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dsrun.launch.context import LocalLauncher
from dsrun.launch.node.work import NodeProgram
from dsrun.launch.supervisor.events import STUCK_S
from dsrun.runs.folder import RunFolder
from dsrun.runs.tail import LineTail
from dsrun.system.terminal import log_format
from dsrun.system.terminal.stderr import is_json

POLL_S = 1.0


@contextmanager
def printed_events(work: NodeProgram, place: LocalLauncher) -> Iterator[None]:
    """On node 0, write each event that comes in here to stderr, if that takes JSON; with text, ranks print what
    matters."""
    if place.node != 0 or not is_json():
        yield
        return
    log_format.labels["run"] = str(Path(work.output).absolute())
    tail = LineTail(RunFolder(Path(work.output)).events, begin=None)
    over = threading.Event()

    def write_events() -> None:
        ended = False
        while not ended:
            ended = over.wait(POLL_S)
            for record in tail.new_records():
                with suppress(OSError):  # no reader any more
                    log_format.write_stderr(log_format.event_line(record).encode())

    # A thread of its own: a terminal may take nothing for hours, while ranks have to be watched.
    thread = threading.Thread(target=write_events, name="events", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(STUCK_S)
