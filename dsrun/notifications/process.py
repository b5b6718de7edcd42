"""The sender's process, as the supervisor sees it: started, told how the run has ended, and never waited for long."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from dsrun.errors import DsrunError
from dsrun.notifications.follow import SenderTask
from dsrun.notifications.notification import RunFacts, SupervisorEnd, sample
from dsrun.notifications.notify_target import COMMAND, MAIL, parse_targets, services
from dsrun.notifications.send import TIMEOUT_S, mail, request
from dsrun.runs.folder import RunFolder
from dsrun.runs.records import records_in, utc_now
from dsrun.system.host import hostname

MODULE = "dsrun.notifications.follow"
LAST_S = TIMEOUT_S + 1.0
"""Seconds for the last message, and for the process to end, when the run is over; then it is killed."""
_JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")


def run_facts(run: Path, name: str, environ: Mapping[str, str]) -> RunFacts:
    """The facts of a run on this machine, whose folder is `run` and whose model or program is `name`."""
    job = next((environ[each] for each in _JOBS if environ.get(each)), None)
    return RunFacts(run=str(run.absolute()), name=name, host=hostname(), job_id=job)


class NotificationSender:
    """The process that sends messages about one run, from its start to `close`. Nothing here raises for it."""

    def __init__(self, facts: RunFacts, targets: Sequence[str], *, requeue: int = 0, external: bool = False) -> None:
        folder = RunFolder(Path(facts.run))
        assignment = SenderTask(
            facts=facts,
            targets=tuple(targets),
            requeue=requeue,
            external=external,
            events_begin=_size(folder.events),
            metrics_begin=_size(folder.metrics),
        )
        self._process: subprocess.Popen[bytes] | None = None
        with suppress(OSError):  # no memory, too many processes: the run goes on untold
            self._process = subprocess.Popen(
                # Not with the targets as arguments: a command may be long, and is nobody else's business.
                [sys.executable, "-m", MODULE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._tell(asdict(assignment))

    @property
    def pid(self) -> int | None:
        """Its process; None where it could not be started."""
        return self._process.pid if self._process else None

    def ended(self, end: SupervisorEnd) -> None:
        """Have the last message sent."""
        self._tell(asdict(end))

    def _tell(self, content: Mapping[str, object]) -> None:
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError, ValueError):  # it was killed
                self._process.stdin.write(json.dumps(content).encode() + b"\n")
                self._process.stdin.flush()

    def close(self) -> list[str]:
        """Wait until it is done, for LAST_S seconds at most; why a target got no message, a line for each."""
        process = self._process
        if process is None:
            return ["the process that sends messages could not be started"]
        with suppress(OSError):
            assert process.stdin
            process.stdin.close()
        deadline = time.monotonic() + LAST_S
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return ["the last message was not sent in time"]
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stdout
            with process.stdout:
                said = process.stdout.read()
        return [record["error"] for record in records_in(said.splitlines()) if "error" in record]


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def preview(facts: RunFacts, targets: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """What a message to each target would be, without secrets, for --dry-run: a line of where, and what is sent."""
    message = sample(facts, utc_now())
    found = []
    for target in parse_targets(targets):
        try:
            address = target.usable_address(environ)
        except DsrunError as error:
            found.append(str(error))
            continue
        if address.kind == MAIL:
            content, way = mail(address, message).decode("utf-8", "replace"), "e-mail through sendmail"
        elif address.kind == COMMAND:
            content, way = json.dumps(message.as_dict(), ensure_ascii=False), "a command, with this on stdin"
        else:
            signed = " (signed)" if address.secret else ""
            content = request(replace(address, secret=""), message, time.time())[1].decode("utf-8", "replace")
            way = f"{services()[address.kind].title}, by POST{signed}"
        found += [f"--notify {target.text}: to {address.shown}, {way}:", content.rstrip()]
    return found
