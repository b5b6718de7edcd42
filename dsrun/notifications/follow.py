"""`python -m dsrun.notifications.follow`: follows a run and sends messages about it; a process of its own.

The ranks write their events into events.jsonl themselves, so that the ledger is the one place that has all that
happens; and whatever a name server, a proxy or a command does to this process, no rank and no supervisor waits for it.
Its first line on stdin is its `SenderTask`, another one is how the supervisor ended (`SupervisorEnd`); stdin ends with
the supervisor, also where that was killed. RUN/logs/notifications.jsonl has a line for each message, sent or not."""

import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from dsrun.errors import DsrunError
from dsrun.notifications.notification import Notification, NotificationRules, RateLimit, RunFacts, SupervisorEnd
from dsrun.notifications.notify_target import NotifyTarget, parse_target
from dsrun.notifications.send import TIMEOUT_S, send
from dsrun.runs.folder import RunFolder
from dsrun.runs.records import LineAppender
from dsrun.runs.tail import LineTail

POLL_S = 1.0
# Not *.log: `dsrun diagnose` reads the newest one of a run, and an error of a webhook is none of the run.
LOG = "notifications.jsonl"
# As the supervisor, it is told to stop with all others; it has to tell of just that.
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@dataclass(frozen=True, kw_only=True)
class SenderTask:
    """What to follow: the facts of the run, the values of --notify, the scheduler's requeues so far, and how many bytes
    of the ledgers were there before. `external`: what runs is not dsrun's own training."""

    facts: RunFacts
    targets: tuple[str, ...]
    requeue: int = 0
    external: bool = False
    events_begin: int = 0
    metrics_begin: int = 0

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Self:
        """The inverse of `asdict`."""
        return cls(**{**found, "facts": RunFacts(**found["facts"]), "targets": tuple(found["targets"])})


class MessageDelivery:
    """Sends messages to all targets at once, and keeps a record of it in the log."""

    def __init__(
        self, targets: Sequence[NotifyTarget], log: Path, *, send: Callable[[NotifyTarget, Notification], None] = send
    ) -> None:
        self._targets = targets
        self._log = log
        self._send = send
        self.failed: dict[str, str] = {}
        """Why the last message that a target did not get was not sent."""

    def deliver(self, messages: Sequence[Notification]) -> None:
        """Send `messages`, which takes no longer than one alone may: what hangs is left behind."""
        if not messages:
            return
        told: dict[str, bool] = {}
        deadline = time.monotonic() + TIMEOUT_S
        threads = [
            (target, threading.Thread(target=self._deliver_to, args=(target, messages, told), daemon=True))
            for target in self._targets
        ]
        for _, thread in threads:
            thread.start()
        for target, thread in threads:
            # Sockets and commands time out by themselves; a name server need not.
            thread.join(max(0.0, deadline + 0.2 - time.monotonic()))
            if thread.is_alive() and target.text not in told:
                self._record(target, messages[-1], f"not sent within {TIMEOUT_S:g} s")

    def _deliver_to(self, target: NotifyTarget, messages: Sequence[Notification], told: dict[str, bool]) -> None:
        for message in messages:
            try:
                self._send(target, message)
            except DsrunError as error:
                self._record(target, message, str(error))
            except Exception as error:
                # Whatever it is, its words may have the URL in them.
                self._record(target, message, type(error).__name__)
            else:
                self._record(target, message, None)
        told[target.text] = True

    def _record(self, target: NotifyTarget, message: Notification, error: str | None) -> None:
        if error is not None:
            self.failed[target.text] = error
        with suppress(OSError), LineAppender(self._log) as log:
            log.append({"kind": message.kind, "target": target.text, "sent": error is None, "error": error})


class ControlPipe:
    """Lines of a pipe, read without waiting longer than asked."""

    def __init__(self, fd: int = 0) -> None:
        self._fd = fd
        self._text = b""
        self._lines: list[bytes] = []
        self._closed = False

    @property
    def is_over(self) -> bool:
        """Whether there will be no further line."""
        return self._closed and not self._lines

    def line(self, timeout_s: float) -> bytes | None:
        """The next whole line; None where there is none after `timeout_s` seconds, or at the end."""
        if not self._lines and not self._closed and select.select([self._fd], [], [], timeout_s)[0]:
            found = os.read(self._fd, 1 << 16)
            self._closed = not found
            *self._lines, self._text = (self._text + found).split(b"\n")
        return self._lines.pop(0) if self._lines else None


def follow(assignment: SenderTask, control: ControlPipe, delivery: MessageDelivery) -> None:
    """Send messages until the supervisor has ended."""
    folder = RunFolder(Path(assignment.facts.run))
    events = LineTail(folder.events, begin=assignment.events_begin)
    metrics = LineTail(folder.metrics, begin=assignment.metrics_begin)
    narrator = NotificationRules(assignment.facts, requeue=assignment.requeue, external=assignment.external)
    limit = RateLimit()
    delivery.deliver(limit.passed(narrator.begin()))
    end: SupervisorEnd | None = None
    while not control.is_over and end is None:
        if line := control.line(POLL_S):
            with suppress(ValueError, TypeError):
                end = SupervisorEnd(**json.loads(line))
        narrator.metrics(metrics.new_records())
        messages = [message for record in events.new_records() for message in narrator.event(record)]
        if control.is_over or end is not None:
            messages += narrator.end(end)
        delivery.deliver(limit.passed(messages))


def main() -> int:
    """Follow the run of the assignment on stdin; stdout has what could not be sent, a line for each target."""
    for signum in _IGNORED:
        signal.signal(signum, signal.SIG_IGN)
    control = ControlPipe()
    line = None
    while line is None and not control.is_over:
        line = control.line(POLL_S)
    if line is None:
        return 0
    assignment = SenderTask.from_dict(json.loads(line))
    log = RunFolder(Path(assignment.facts.run)).logs / LOG
    delivery = MessageDelivery([parse_target(text) for text in assignment.targets], log)
    follow(assignment, control, delivery)
    with suppress(OSError):
        for target, error in delivery.failed.items():
            print(json.dumps({"target": target, "error": error}), flush=True)
    # Threads that still wait for a server end with the process.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
