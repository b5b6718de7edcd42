"""What is told about a run beside its supervisor, on its first node: messages to the targets of --notify, and with
--log-format json its events on stderr, as its ranks and supervisors write them into the ledger."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dsrun.errors import EXIT_INTERRUPTED, EXIT_RESUME, EXIT_TOOL_FAILED, DsrunError, UsageError, one_line
from dsrun.launch.context import LocalLauncher, RunOutcome
from dsrun.launch.coordinator.messages import StoppedBeforeStart
from dsrun.launch.node.work import NodeProgram
from dsrun.launch.signals import StartupSignals
from dsrun.launch.supervisor.events import STUCK_S
from dsrun.notifications.notification import SupervisorEnd
from dsrun.notifications.notify_target import parse_targets
from dsrun.notifications.process import NotificationSender, preview, run_facts
from dsrun.runs.attempts import attempt
from dsrun.runs.folder import RunFolder
from dsrun.runs.tail import LineTail
from dsrun.system import variables
from dsrun.system.terminal import log_format
from dsrun.system.terminal.stderr import is_json, print_detail, print_note

POLL_S = 1.0


@contextmanager
def notifications(
    work: NodeProgram, place: LocalLauncher, signals: StartupSignals
) -> Iterator[Callable[[RunOutcome], None]]:
    """Send messages about what happens in here; the function that is yielded takes how the run ended.

    What goes wrong with a message is noted. It neither ends the run nor holds it up; its end is waited for, for three
    seconds at most: a batch system kills what is left of a job whose script has ended."""
    if place.node != 0 or not work.notify:
        yield lambda _outcome: None
        return
    for target in parse_targets(work.notify):
        try:
            target.usable_address(os.environ)
        except UsageError as error:
            print_note(f"{error}; until then no message goes there")
    facts = run_facts(Path(work.output), work.name, os.environ)
    sender = NotificationSender(
        facts, work.notify, requeue=attempt(os.environ).get("requeue", 0), external=work.recipe is None
    )
    try:
        yield lambda outcome: sender.ended(_end(outcome))
    except BaseException as error:
        sender.ended(_early_end(error, signals))
        raise
    finally:
        with suppress(KeyboardInterrupt):  # the run is over; only the wait for its message is not
            for line in sender.close():
                print_note(f"--notify: {line}")


def _early_end(error: BaseException, signals: StartupSignals) -> SupervisorEnd:
    """The end of a run whose supervisor did not come to one: a signal before it began, a node that did not join."""
    if isinstance(error, KeyboardInterrupt):
        return SupervisorEnd(exit_code=EXIT_INTERRUPTED)
    if signals.request is not None and not isinstance(error, DsrunError):
        return SupervisorEnd(exit_code=EXIT_RESUME, message=str(StoppedBeforeStart(signals.request)))
    return SupervisorEnd(exit_code=getattr(error, "exit_code", EXIT_TOOL_FAILED), message=one_line(error))


def _end(outcome: RunOutcome) -> SupervisorEnd:
    message = " ".join(filter(None, (outcome.message, outcome.advice and f"({outcome.advice})"))) or None
    stop_file = os.environ.get(variables.STOP_FILE)
    stopped = bool(stop_file) and Path(stop_file or "").exists()
    log = str(Path(outcome.log).absolute()) if outcome.log else None
    return SupervisorEnd(exit_code=outcome.exit_code, message=message, log=log, stopped=stopped)


def print_preview(work: NodeProgram) -> None:
    """--dry-run: print what a message to each target would look like."""
    facts = run_facts(Path(work.output), work.name, os.environ)
    for line in preview(facts, work.notify, os.environ):
        (print_note if line.startswith("--notify") else print_detail)(line)


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
