"""What a supervisor writes into the run folder: failures, remedies and restarts in events.jsonl, and remedy.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from dsrun.diagnosis.rules import cause_named
from dsrun.errors import UsageError
from dsrun.launch.supervisor.policy import Decision, Failure, MemoryFallback
from dsrun.runs.attempts import RESUME_AUTO, RESUME_NEVER, earlier_signatures, saved_global_batch
from dsrun.runs.commit import tidy
from dsrun.runs.folder import RunFolder, is_in_use
from dsrun.runs.manifest import newest_complete
from dsrun.runs.records import EventLog, write_json_atomic
from dsrun.runs.schema import EventKind

REMEDY_FILE = "remedy.json"


class RunEventWriter:
    """The supervisor's hand in the run folder, and its voice."""

    def __init__(self, folder: RunFolder, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._say = say

    def newest_checkpoint(self) -> int | None:
        """The step of the newest complete checkpoint, 0 for none; None where the file server does not tell."""
        with suppress(OSError):  # a moment's trouble with it is no reason to end the run
            newest = newest_complete(self._folder)
            return newest[0] if newest else 0
        return None

    def saved_batch(self, resume: str, environ: Mapping[str, str]) -> int | None:
        """The global batch of the checkpoint that the attempt of `environ` resumes from, None if there is none."""
        again = earlier_signatures(environ)
        # --resume never is about the first start.
        return saved_global_batch(self._folder, RESUME_AUTO[0] if again and resume == RESUME_NEVER else resume, again)

    def remedy(self) -> MemoryFallback:
        """What remedy.json says. UsageError where it is not dsrun's."""
        try:
            found = json.loads((self._folder.path / REMEDY_FILE).read_text())
        except FileNotFoundError:
            return MemoryFallback()
        except ValueError:
            found = {}
        return MemoryFallback.from_dict(found if isinstance(found, dict) else {})

    def failed(self, failure: Failure, decision: Decision, *, attempt: int) -> None:
        """On the first node: say and record what failed and what is done about it."""
        remedy = decision.remedy if decision.remedy != self.remedy() else None
        self._event(
            "failure",
            cause=decision.cause or failure.cause or None,
            rank=failure.rank,
            exit_code=failure.exit_code,
            step=failure.step,
            message=failure.message,
            seconds=failure.detected_s,
            stalled_s=failure.stalled_s,
            attempt=attempt,
        )
        if remedy is not None:
            self._event("remedy", message=decision.why, cause=failure.cause, attempt=attempt + 1, **_plain(remedy))
        if decision.action == "restart":
            self._event("restart", message=decision.why, seconds=decision.wait_s, attempt=attempt + 1)
            self._say(_line(failure, decision))

    def never_began(self, message: str, *, cause: str, exit_code: int) -> None:
        """On the first node: why there was not even a first attempt."""
        self._event("failure", cause=cause, message=message, exit_code=exit_code)

    def apply(self, decision: Decision) -> None:
        """On every node: put the remedy where the ranks find it."""
        if decision.action == "restart" and decision.remedy != self.remedy():
            write_json_atomic(self._folder.path / REMEDY_FILE, decision.remedy.as_dict())

    def clean_up(self) -> None:
        """After the last attempt, on the first node: delete what a save left that failed on one rank while others wrote
        on. Until the next start it would take the room that a full disk lacks."""
        with suppress(OSError, UsageError), self._folder.acquire():
            for words in tidy(self._folder):
                self._say(words)

    def _event(self, kind: EventKind, **details: Any) -> None:
        # Our ranks have ended, so it is another run that has the folder and refused ours. This is its ledger then.
        if is_in_use(self._folder.path):
            return
        # A full disk is a reason to write less, not to end without a word.
        with suppress(OSError), EventLog(self._folder.events) as log:
            log.write(kind, **{name: value for name, value in details.items() if value is not None})


def _line(failure: Failure, decision: Decision) -> str:
    """Who failed how, and what comes next: "rank 1 was killed (SIGKILL) after step 12: again from step 10 in 1 s"."""
    next_ = decision.why.removeprefix(f"{cause_named(failure.cause).title}: ")
    # Where nobody knows the cause, the message is all there is to say of it.
    return next_ if failure.message in next_ else f"{failure.message}: {next_}"


def _plain(remedy: MemoryFallback) -> dict[str, Any]:
    return {"halvings": remedy.halvings, "recompute": remedy.recompute, "offload": remedy.offload}
