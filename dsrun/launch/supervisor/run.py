"""Keeping a run alive on this machine: attempt after attempt, until it is done, told to stop, or beyond help.

The process tree: this supervisor → a warm process (`dsrun.launch.workers.zygote`; none with `warm` off or for a foreign
program) → torch.distributed.run → the ranks. Beside it a guard (`dsrun.launch.supervisor.reaper`) that ends all of them should the
supervisor be killed. Signals, detection and decisions are explained in docs/launch.md.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import IO, Self

from dsrun.errors import EXIT_INTERRUPTED, EXIT_RESUME
from dsrun.launch.coordinator.messages import Council, Ended
from dsrun.launch.job import Job, Outcome
from dsrun.launch.signals import SOMEBODY, Wishes
from dsrun.launch.supervisor import reaper
from dsrun.launch.supervisor.attempt import Attempt, End, Surroundings
from dsrun.launch.supervisor.events import Ledger
from dsrun.launch.supervisor.failures import explain, first_of_nodes
from dsrun.launch.supervisor.output import Voice
from dsrun.launch.supervisor.policy import CONFIGURATION, Decision, Failure, decide, shrink
from dsrun.launch.workers.agent import (
    CONSOLE_VARIABLE,
    SAVE_ON_VARIABLE,
    STOP_FILE_VARIABLE,
    STUCK_S,
    TERMINAL_VARIABLE,
    WORKER_IMPORTS,
    Cold,
    Relay,
    Starter,
    Warm,
    echoed,
)
from dsrun.launch.workers.agent_process import TORCH_SIGNALS
from dsrun.runs.folder import RunFolder
from dsrun.system.net import free_port
from dsrun.system.proc import FAMILY_VARIABLE

__all__ = ["Job", "Outcome", "supervise"]

Say = Callable[[str], None]
"""Shows the user one line while the run goes on."""

WAIT_LOOK_S = 0.1


def supervise(job: Job, council: Council, say: Say = lambda line: None) -> Outcome:
    """Run `job` to its end, together with the supervisors of the other nodes.

    Nothing of it is left afterwards. The exit code is 0 for a finished run, 75 (EXIT_RESUME) for one that was told to
    stop and goes on with the same command, 130 after Ctrl-C, 128 + n for signal n that allowed no time to save, else
    that of the rank that failed first.
    """
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dsrun-")))
        stack.enter_context(_locked(scratch))
        outer = job.env.get(STOP_FILE_VARIABLE)
        wishes = Wishes(scratch / "stop", council.announce_stop, outer=Path(outer) if outer else None)
        stack.enter_context(wishes.listening())
        mark = uuid.uuid4().hex
        guardian = stack.enter_context(Guard(mark, scratch))
        job.run.joinpath("logs").mkdir(parents=True, exist_ok=True)
        log = job.run / "logs" / f"{datetime.now():%Y%m%d-%H%M%S}-launcher.log"
        if job.node_rank:
            log = log.with_stem(f"{log.stem}-node-{job.node_rank}")
        around = Surroundings(
            job=job,
            scratch=scratch,
            mark=mark,
            wishes=wishes,
            others=council,
            log=log,
            look=guardian.keep,
        )
        # Without a buffer: what a full disk does not take would be tried, and fail, once more at the end.
        with log.open("ab", buffering=0) as file, echoed(file, scratch / "output", job.echo) as sink:
            os.mkfifo(scratch / "console")
            stack.enter_context(Relay(scratch / "console"))
            voice = stack.enter_context(Voice(say, patience_s=STUCK_S))
            return _Supervision(around, council, Ledger(RunFolder(job.run), voice), sink).keep_going()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Have systemd-tmpfiles, which clears /tmp of what is ten days old, leave `folder` alone: see tmpfiles.d(5)."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(fd, fcntl.LOCK_SH)
        yield
    finally:
        os.close(fd)


class _Supervision:
    def __init__(self, around: Surroundings, council: Council, ledger: Ledger, sink: IO[bytes]) -> None:
        self._job = job = around.job
        self._around = around
        self._council = council
        self._wishes = around.wishes
        self._mark = around.mark
        self._log = around.log
        self._ledger = ledger
        self._number = council.attempt
        self._env = self._environment()
        self._starter: Starter = Cold(sink)
        if job.warm:
            module = None if job.foreign else job.program[1]
            imports = () if job.foreign else (*WORKER_IMPORTS, *job.imports)
            self._starter = Warm(module, imports, self._env, sink)
        self._history: list[Failure] = []
        self._progress: list[int | None] = []

    def _environment(self) -> dict[str, str]:
        """What agent and ranks of all attempts have in common."""
        mark = self._around.mark
        outer = self._job.env.get(FAMILY_VARIABLE)
        variables = {
            FAMILY_VARIABLE: f"{outer}/{mark}" if outer else mark,
            CONSOLE_VARIABLE: str(self._around.scratch / "console"),
            STOP_FILE_VARIABLE: str(self._wishes.file),
            SAVE_ON_VARIABLE: "USR1,TERM",
            "PET_SIGNALS_TO_HANDLE": TORCH_SIGNALS,
        }
        if self._job.terminal_width:
            variables[TERMINAL_VARIABLE] = str(self._job.terminal_width)
        return {**self._job.env, **variables}

    def keep_going(self) -> Outcome:
        """Attempt after attempt; leaves nobody behind."""
        try:
            while True:
                self._progress.append(self._newest())
                end = self._attempt()
                if end is None or self._wishes.at_once is not None or self._wishes.interrupted:
                    return self._cut_short()
                decision = self._council.settle(self._ended(end), self._decide)
                self._ledger.apply(decision)
                if decision.action == "stop":
                    if self._has_to_clear_up(decision):
                        self._ledger.clear_up()
                    return self._outcome(end, decision)
                self._number += 1
                if not self._pause(decision.wait_s):
                    return self._cut_short()
        finally:
            self._council.close()
            reaper.end(self._mark)

    def _attempt(self) -> End | None:
        """One attempt; None when nobody wants another one any more."""
        if self._nobody_wants_more():
            return None
        port = self._job.port or free_port()
        return Attempt(self._around, self._number).run(self._starter, self._env, port)

    def _has_to_clear_up(self, decision: Decision) -> bool:
        """Whether it is on this node to clear up after ranks of ours that ended in the middle of something."""
        ours = not self._job.foreign and self._job.node_rank == 0
        return ours and decision.exit_code not in (0, EXIT_RESUME)

    def _newest(self) -> int | None:
        """The step of the newest complete checkpoint, 0 for none; None where nobody or only the program knows."""
        return None if self._job.foreign else self._ledger.newest_checkpoint()

    def _ended(self, end: End) -> Ended:
        failure = None
        if not end.ok and not end.by_others:
            failure = explain(end.remains, _classify)
        return Ended(node=self._job.node_rank, ok=end.ok, interrupted=end.told, failure=failure)

    def _decide(self, ended: list[Ended]) -> Decision:
        """On the first node: what all nodes do next."""
        remedy = self._ledger.remedy()
        failure = first_of_nodes([each.failure for each in ended if each.failure])
        if failure is None:
            told = any(each.interrupted for each in ended)
            code = EXIT_RESUME if told else 0
            return Decision(action="stop", exit_code=code, wait_s=0.0, why="", remedy=remedy)
        self._history.append(failure)
        micro = self._job.micro_batch
        if micro is not None:
            micro, _ = shrink(micro, self._job.accumulation, remedy.halvings)
        limits = replace(self._job.limits, remedy=self._job.limits.remedy and not self._job.foreign)
        decision = decide(
            self._history,
            limits,
            progress=[*self._progress, self._newest()],
            remedy=remedy,
            micro_batch=micro,
        )
        self._ledger.failed(failure, decision, attempt=self._number)
        return decision

    def _pause(self, seconds: float) -> bool:
        """Wait before the next attempt; False when a signal says that there is none."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self._nobody_wants_more():
                return False
            time.sleep(WAIT_LOOK_S)
        return True

    def _nobody_wants_more(self) -> bool:
        return bool(self._wishes.stop() or self._wishes.interrupted or self._council.stop_asked())

    def _cut_short(self) -> Outcome:
        """The end by a signal."""
        if self._wishes.at_once is not None:
            return Outcome(128 + self._wishes.at_once, "ended at once, without saving")
        if self._wishes.interrupted:
            return Outcome(EXIT_INTERRUPTED)
        return Outcome(EXIT_RESUME, self._stopped(self._wishes.stop() or self._council.stop_asked(), None))

    def _outcome(self, end: End, decision: Decision) -> Outcome:
        if decision.exit_code == 0:
            return Outcome(0)
        if decision.exit_code == EXIT_RESUME:
            return Outcome(EXIT_RESUME, self._stopped(self._wishes.stop(), end.saved))
        failure = self._history[-1] if self._history else None
        log = (failure and failure.log) or str(self._log)
        if failure is None or failure.message in decision.why:  # also where there is no message
            return Outcome(decision.exit_code, decision.why, log=log)
        # Our own worker's words on a mistake in the command say all that helps.
        advice = None if decision.exit_code in CONFIGURATION and not self._job.foreign else decision.why
        return Outcome(decision.exit_code, failure.message, advice, log)

    def _stopped(self, name: str | None, saved: str | None) -> str:
        what = f"saved {saved}" if saved else "nothing new was saved"
        again = self._job.again
        if not self._job.resumes and (saved or self._newest() not in (None, 0, *self._progress[:1])):
            again += f"{' and' if ' with ' in again else ' with'} --resume auto"
        return f"told to stop by {name or SOMEBODY}: {what}; {again} goes on from there"


def _classify(text: str, exit_code: int | None) -> str:
    """The code of the cause that a log shows; "" where it shows none, or only what a failed peer does to a rank.

    What is merely likely may be a reason to start again, but none to give up.
    """
    from dsrun.causes.classify import classify

    found = classify(text, exit_code=exit_code)
    if found is None or found.weight == "consequence" or (found.weight == "guess" and not found.transient):
        return ""
    return found.cause


class Guard:
    """A process that ends the family when this one is gone, however. See `dsrun.launch.supervisor.reaper`."""

    def __init__(self, mark: str, scratch: Path) -> None:
        self._words = [mark, str(scratch)]
        self._begin()

    def _begin(self) -> None:
        read, self._write = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", reaper.__file__, str(read), *self._words],
            pass_fds=(read,),
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read)

    def keep(self) -> None:
        """Start another one where it was killed."""
        if self._process.poll() is not None:
            os.close(self._write)
            self._begin()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._write)
        self._process.wait()
