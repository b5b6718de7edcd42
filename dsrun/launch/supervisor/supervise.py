"""Runs a job on this machine: attempt after attempt, until it is done, asked to stop, or cannot succeed.

The process tree: this supervisor → a zygote (`dsrun.launch.workers.zygote`; not with `--no-warm` or for an external
program) → torch.distributed.run → the ranks. A separate reaper (`dsrun.launch.supervisor.reaper`) ends all of them if
the supervisor is killed. docs/launch.md explains signals, detection and decisions."""

import os
import signal
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import IO

from dsrun.errors import EXIT_INTERRUPTED, EXIT_RESUME
from dsrun.launch.context import RunOutcome, TrainingJob
from dsrun.launch.coordinator.messages import Coordinator, NodeResult
from dsrun.launch.memory_fallback import MemoryFallback, shrink
from dsrun.launch.program_record import ProgramRecord
from dsrun.launch.signals import StopRequests
from dsrun.launch.supervisor import reaper
from dsrun.launch.supervisor.attempt import NO_HEARTBEAT_PATIENCE_S, RunAttempt
from dsrun.launch.supervisor.ending import AttemptContext, AttemptResult, GpuMemory
from dsrun.launch.supervisor.events import STUCK_S, AsyncLineWriter, PipeTee, RunEventWriter, tee_output
from dsrun.launch.supervisor.evidence import evidence_folder, explain_hang_of_nodes
from dsrun.launch.supervisor.failures import classify_log, explain, first_of_nodes
from dsrun.launch.supervisor.policy import CONFIGURATION, NODE_LOST, AttemptFailure, RunDecision, decide, exit_code
from dsrun.launch.supervisor.status_files import StatusWriter
from dsrun.launch.supervisor.watchdog import PhaseLimits
from dsrun.launch.workers.agent import WORKER_IMPORTS, AgentStarter, SpawnStarter, ZygoteStarter
from dsrun.launch.workers.zygote import TORCH_SIGNALS
from dsrun.machine.gpus import memory_used
from dsrun.runs.attempts import JobStarts
from dsrun.runs.folder import RunFolder
from dsrun.runs.heartbeat import RankHeartbeat, StopRequest, activity
from dsrun.system import variables
from dsrun.system.host import hostname
from dsrun.system.net import free_port
from dsrun.system.process.scratch import scratch_folder
from dsrun.system.terminal.display import NotePrinter, size_text
from dsrun.system.terminal.log_format import LineFormatter, NoiseFilter
from dsrun.system.terminal.status_line import status
from dsrun.system.terminal.stderr import is_json

STARTING = "starting the ranks"
LOADING = "loading torch, transformers and DeepSpeed"
WAIT_POLL_S = 0.1
# Failures of ranks that did not end by themselves.
_LEFT_BEHIND = ("rank_hung", "process_unkillable", NODE_LOST)


def supervise(job: TrainingJob, coordinator: Coordinator, notify: NotePrinter = lambda line: None) -> RunOutcome:
    """Run `job` to its end, together with the supervisors of the other nodes.

    Nothing of it is left afterwards. The exit code is 0 for a finished run, 75 (EXIT_RESUME) for one that was asked to
    stop and goes on with the same command, 130 after Ctrl-C, 128 + n for signal n that allowed no time to save, else
    that of the rank that failed first."""
    with ExitStack() as stack:
        scratch = stack.enter_context(scratch_folder("dsrun-"))
        outer = job.env.get(variables.STOP_FILE)
        stop_requests = StopRequests(
            scratch / "stop",
            coordinator.announce_stop,
            outer=Path(outer) if outer else None,
            to_program=not job.signals,
        )
        stack.enter_context(stop_requests.handling_signals())
        run_id = uuid.uuid4().hex
        reaper_process = stack.enter_context(reaper.Reaper(run_id, scratch))
        run = RunFolder(job.run)
        run.logs.mkdir(parents=True, exist_ok=True)
        log = run.logs / f"{datetime.now():%Y%m%d-%H%M%S}-launcher.log"
        if job.node_rank:
            log = log.with_stem(f"{log.stem}-node-{job.node_rank}")
        line_writer = stack.enter_context(AsyncLineWriter(notify, timeout_s=STUCK_S))
        event_writer = RunEventWriter(run, line_writer)
        record = ProgramRecord(job, log, line_writer, stop_requests.program_asked)
        status_writer = stack.enter_context(StatusWriter(job, on_straggler=event_writer.straggles, record=record.look))

        def failing(number: int, result: AttemptResult) -> None:
            record.over()
            event_writer.failing(number, result, first=job.node_rank == 0)

        shown = stack.enter_context(status(STARTING if job.external else LOADING))

        def observe(number: int, beats: Mapping[int, RankHeartbeat], pids: Mapping[int, int]) -> None:
            status_writer.offer(number, beats, pids)
            if beat := beats.get(0):
                shown.say(*activity(beat))
            elif beats or (pids and job.external):
                shown.say("")  # node 0 tells it; what a program does then is its own affair

        context = AttemptContext(
            job=job,
            scratch=scratch,
            run_id=run_id,
            stop_requests=stop_requests,
            others=coordinator,
            log=log,
            poll=reaper_process.keep,
            observe=observe,
            limits=PhaseLimits(job.hang_timeout, others=job.nnodes > 1),
            waiting=event_writer.waiting if job.node_rank == 0 else lambda line, _seconds: line_writer(line),
            record_failing=failing,
            attend=status_writer.attend,
            say=shown.say,
        )
        # Without a buffer: what a full disk does not take would be tried, and fail, once more at the end.
        as_json = is_json(job.env)
        filters: list[LineFormatter | NoiseFilter] = [] if job.echoes_noise else [NoiseFilter()]
        filters += [LineFormatter()] if as_json else []
        with log.open("ab", buffering=0) as file, tee_output(file, scratch / "output", job.echo, filters) as sink:
            os.mkfifo(scratch / "console")
            stack.enter_context(PipeTee(scratch / "console", filters=[LineFormatter()] if as_json else ()))
            supervision = _Supervision(context, event_writer, record, sink)
            outcome = supervision.run_attempts()
        # Now all that the program has written is in the log.
        record.end(outcome, supervision.signal_of_end())
        return outcome


class _Supervision:
    def __init__(
        self, context: AttemptContext, event_writer: RunEventWriter, record: ProgramRecord, sink: IO[bytes]
    ) -> None:
        self._job = job = context.job
        self._context = context
        self._coordinator = context.others
        self._stop_requests = context.stop_requests
        self._event_writer = event_writer
        self._record = record
        self._members: Sequence[int] = range(job.nnodes)
        self._env = self._environment()
        self._starter: AgentStarter = SpawnStarter(sink)
        if job.warm:
            module = None if job.external else job.program[1]
            imports = () if job.external else (*WORKER_IMPORTS, *job.imports)
            self._starter = ZygoteStarter(module, imports, self._env, sink)
        self._gpu_memory = GpuMemory(partial(memory_used, context.job.env))
        self._job_starts = JobStarts(job.run, job.env)
        self._history: list[AttemptFailure] = []
        self._will_restart = False
        self._progress: list[int | None] = []
        self._newest_at_first: int | None = None
        self._saved_batch = job.saved_batch

    def _environment(self) -> dict[str, str]:
        """What agent and ranks of all attempts have in common."""
        outer = self._job.env.get(variables.RUN_ID)
        own = {
            variables.BEGAN: self._job.env.get(variables.BEGAN) or f"{time.time():.3f}",
            # With that of a supervisor around this one, whose reaper ends these processes as well.
            variables.RUN_ID: "/".join(filter(None, (outer, self._context.run_id))),
            variables.CONSOLE: str(self._context.scratch / "console"),
            "PET_SIGNALS_TO_HANDLE": TORCH_SIGNALS,
        }
        if self._job.signals:
            own |= {variables.STOP_FILE: str(self._stop_requests.file), variables.SAVE_ON: "USR1,TERM"}
        else:
            # By default torch kills ranks that still save 30 s after the first one of their node has left.
            own["PET_SHUTDOWN_TIMEOUT"] = str(round(NO_HEARTBEAT_PATIENCE_S))
        if self._job.recipe is not None:
            file = self._context.scratch / "recipe.json"
            file.write_text(self._job.recipe, encoding="utf-8")
            own[variables.RECIPE] = str(file)
        if self._job.terminal_width:
            own[variables.TERMINAL] = str(self._job.terminal_width)
        return {**self._job.env, **own}

    def run_attempts(self) -> RunOutcome:
        """Attempt after attempt; no process is left."""
        try:
            self._coordinator.take_part(self._is_ready, lambda: self._stop_requests.interrupted)
            self._number = self._coordinator.attempt
            # A node that joins a run later does not know its checkpoints.
            self._knows_saved_batch = not self._job.external and self._number == 0
            self._newest_at_first = newest = self._newest()
            while True:
                self._progress.append(newest)
                self._tell_members()
                end = self._attempt()
                self._record.over()
                self._context.say("waiting for the other nodes" if self._job.nnodes > 1 else "")
                if end is None or self._stop_requests.force_quit is not None or self._stop_requests.interrupted:
                    return self._result_after_signal(end)
                decision = self._coordinator.report_and_wait(self._node_result(end), self._decide)
                self._event_writer.apply(decision)
                if decision.action == "stop":
                    first = self._job.node_rank == 0
                    if first and decision.cause == NODE_LOST and self._will_restart:  # which it did not come back for
                        why, code = decision.why, decision.exit_code
                        self._event_writer.never_began(why, cause=NODE_LOST, exit_code=code)
                    # Ranks of ours may have ended in the middle of a save.
                    if first and not self._job.external and decision.exit_code not in (0, EXIT_RESUME):
                        self._event_writer.clean_up()
                    return self._outcome(end, decision)
                if self._job.elastic:
                    self._stop_requests.regrouped()
                self._number += 1
                newest = self._newest()
                self._context.say(STARTING)  # until a rank tells more
                self._saved_batch, self._knows_saved_batch = decision.saved_batch, not self._job.external
                if not self._pause(decision.wait_s) or not self._gpus_are_free():
                    return self._result_after_signal()
        finally:
            self._coordinator.close()
            reaper.end(self._context.run_id)

    def _is_ready(self) -> bool:
        """Whether ranks can be started at once, so that a node which joins does not hold the others up."""
        if is_ready := self._starter.is_ready:
            self._context.say("waiting until the run takes this node in")
        return is_ready

    def _tell_members(self) -> None:
        """Record with which nodes the attempt begins, where these are others than before."""
        before, self._members = self._members, self._coordinator.members
        if not self._job.elastic or tuple(before) == self._members:
            return
        self._record.ranks = len(self._members) * self._job.topology.workers
        self._context.attend(self._members)
        if self._job.node_rank == 0:
            batch = self._job.batches.get(len(self._members))
            self._event_writer.regrouped(before, self._members, of=self._job.nnodes, batch=batch)

    def _attempt(self) -> AttemptResult | None:
        """One attempt; None when no other one is wanted."""
        if self._stop_wanted():
            return None
        port = self._job.port or free_port()
        self._record.begin(self._number, self._env)
        self._event_writer.begin()
        known = {variables.SAVED_BATCH: str(self._saved_batch or "")} if self._knows_saved_batch else {}
        return RunAttempt(self._context, self._number).run(self._starter, {**self._env, **known}, port)

    def _newest(self) -> int | None:
        """The step of the newest complete checkpoint, 0 for none; None where only the program knows, if any.

        Only node 0, which decides, looks: a thousand nodes would each ask the file server for every file."""
        unknown = self._job.external or self._job.node_rank != 0
        return None if unknown else self._event_writer.newest_checkpoint()

    def _node_result(self, end: AttemptResult) -> NodeResult:
        failure = None
        # SLURM's name of a node may be another than the machine's (slurm.conf(5), NodeHostname), and it is the one that
        # ExcNodeList takes.
        host = os.environ.get("SLURMD_NODENAME") or hostname()
        if not end.ok and not end.by_others:
            failure = replace(explain(end.failure_inputs, classify_log), host=host)
        if end.unkillable and not end.ok:
            why = end.unkillable if failure is None else f"{failure.message}; {end.unkillable}"
            failure = failure or AttemptFailure(cause="", node=self._job.node_rank, host=host)
            failure = replace(failure, cause="process_unkillable", message=why)
        return NodeResult(node=self._job.node_rank, ok=end.ok, interrupted=end.stop_requested, failure=failure)

    def _decide(self, ended: list[NodeResult]) -> RunDecision:
        """On the first node: what all nodes do next."""
        fallback = self._event_writer.fallback()
        failure = first_of_nodes([each.failure for each in ended if each.failure])
        if failure and failure.cause == "rank_hung":
            folder = evidence_folder(self._job.run, self._number)
            failure = explain_hang_of_nodes(failure, folder, self._job.topology.workers, self._coordinator.members)
        left = failure is not None and (failure.exit_code < 0 or failure.cause in _LEFT_BEHIND)
        if failure and left and self._event_writer.has_finished():
            # All that the run was to make is there; only its processes did not come to their end. One that ends with a
            # code of its own says that something is amiss, as a model that could not be pushed.
            self._event_writer.finished_all_the_same(failure)
            failure = None
        if failure is None:
            # One that was asked to stop while it ended may have come to its end all the same.
            stop_requested = any(each.interrupted for each in ended) and not self._event_writer.has_finished()
            request = self._coordinator.stop_requested()
            if stop_requested and request and request.regroups:
                return self._regrouped(fallback)
            if not stop_requested:
                self._job_starts.record("finished")  # before any node hears of it and may end
            code = EXIT_RESUME if stop_requested else 0
            return RunDecision(action="stop", exit_code=code, why="", fallback=fallback)
        if self._stop_requests.program_asked():
            # Its exit code says whether it is finished; whoever has asked it to stop knows what comes next.
            code = exit_code(failure)
            why = f"the program left with exit code {code} after it was asked to stop"
            return RunDecision(action="stop", exit_code=code, why=why, fallback=fallback)
        if failure.step is None:
            failure = replace(failure, step=self._record.step)
        self._history.append(failure)
        batch, elastic = self._job.batches.get(len(self._members)), self._job.elastic
        micro = shrink(batch.micro_batch, batch.accumulation, fallback.halvings)[0] if batch else None
        remedy = self._job.limits.remedy and not self._job.external
        limits = replace(self._job.limits, remedy=remedy, losses=elastic.most - elastic.least if elastic else 0)
        decision = decide(
            self._history, limits, progress=[*self._progress, self._newest()], fallback=fallback, micro_batch=micro
        )
        self._event_writer.failed(failure, decision, attempt=self._number)
        self._will_restart = decision.action == "restart"
        return self._with_saved_batch(decision) if self._will_restart and not self._job.external else decision

    def _regrouped(self, fallback: MemoryFallback) -> RunDecision:
        """The ranks have saved and left, for nodes that are back."""
        self._progress.pop()  # an attempt that has not failed
        why = f"nodes are back: again from step {self._newest() or 0}"
        return self._with_saved_batch(RunDecision(action="restart", exit_code=EXIT_RESUME, why=why, fallback=fallback))

    def _with_saved_batch(self, decision: RunDecision) -> RunDecision:
        environ = {**self._env, variables.ATTEMPT: str(self._number + 1)}
        return replace(decision, saved_batch=self._event_writer.saved_batch(self._job.resume, environ))

    def _pause(self, seconds: float) -> bool:
        """Wait before the next attempt; False when a signal says that there is none."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self._stop_wanted():
                return False
            time.sleep(WAIT_POLL_S)
        return True

    def _gpus_are_free(self) -> bool:
        """Wait for the GPU memory of the last attempt, in vain for a while at most; False when a signal came."""
        if held := self._gpu_memory.wait_until_free(self._stop_wanted):
            sizes = ", ".join(f"{size_text(size)} on {uuid}" for uuid, size in held.items())
            self._context.waiting(f"GPU memory is still in use: {sizes}; the ranks start all the same", 0.0)
        return not self._stop_wanted()

    def signal_of_end(self) -> str | None:
        """The name of the signal that has ended the run; None where it ended by itself."""
        stops = self._stop_requests
        if stops.force_quit is not None:
            return signal.Signals(stops.force_quit).name
        if stops.interrupted:
            return signal.SIGINT.name
        request = self._request() or stops.program_asked()
        return request.signal if request else None

    def _stop_wanted(self) -> bool:
        return bool(self._request() or self._stop_requests.interrupted)

    def _request(self) -> StopRequest | None:
        """What this node or another one was asked."""
        return self._stop_requests.stop() or self._coordinator.stop_requested()

    def _result_after_signal(self, end: AttemptResult | None = None) -> RunOutcome:
        """The end by a signal, in the attempt that ended so, if it was in one."""
        if self._stop_requests.force_quit is not None:
            return RunOutcome(128 + self._stop_requests.force_quit, "ended at once, without saving")
        if self._stop_requests.interrupted:
            ours = not self._job.external
            return RunOutcome(
                EXIT_INTERRUPTED, self._interrupted(end) if ours else self._program_stopped("stopped by Ctrl-C")
            )
        return RunOutcome(EXIT_RESUME, self._stopped(None))

    def _outcome(self, end: AttemptResult, decision: RunDecision) -> RunOutcome:
        if decision.exit_code == 0:
            return RunOutcome(0)
        if decision.exit_code == EXIT_RESUME and decision.cause != NODE_LOST:
            # That node 0 has left says more than that some signal came.
            is_known = self._request() or not (self._job.node_rank and decision.why)
            return RunOutcome(EXIT_RESUME, self._stopped(end) if self._job.signals and is_known else decision.why)
        failure = self._history[-1] if self._history else None
        log = (failure and failure.log) or str(self._context.log)
        if failure is None or failure.message in decision.why:  # also where there is no message
            return RunOutcome(decision.exit_code, decision.why, log=log)
        # Our own worker's words on a mistake in the command are all that helps.
        advice = None if decision.exit_code in CONFIGURATION and not self._job.external else decision.why
        return RunOutcome(decision.exit_code, failure.message, advice, log)

    def _stopped(self, end: AttemptResult | None) -> str:
        request, saved = self._request(), end and end.saved
        # A node that was ended by Ctrl-C has asked for nothing, and is named.
        by = self._history[-1].message if self._history and not request else f"stopped by {request or StopRequest()}"
        if self._job.external and not saved:
            return self._program_stopped(by)
        if self._job.node_rank and not saved:
            return f"{by}: node 0 says what was saved, and how to go on"
        newest = self._newest()
        is_new = bool(saved) or newest not in (None, 0, self._newest_at_first)
        what = f"saved {saved}" if saved else f"checkpoint-{newest} is complete" if is_new else "nothing new was saved"
        what = "what was saved is unknown" if not saved and newest is None else what
        if end and end.failure_inputs.hang:
            what = f"{end.failure_inputs.hang.message}; {what}"
        then = "resumes from there" if is_new else "goes on" if newest is None else "begins where this run began"
        return f"{by}: {what}; {self._again(resume=is_new)} {then}"

    def _again(self, *, resume: bool) -> str:
        """The command that goes on, from a checkpoint with `resume`."""
        again = self._job.again
        if resume and not self._job.resumes:
            again += f"{' and' if ' with ' in again else ' with'} --resume auto"
        return again

    def _interrupted(self, end: AttemptResult | None) -> str | None:
        """Ctrl-C: where it was, and what the same command does now; only node 0 knows."""
        if self._job.node_rank:
            return None
        newest = self._newest()
        step = max(end.failure_inputs.steps.values(), default=None) if end else None
        where = "interrupted before training began" if step is None else f"interrupted at step {step}"
        again = self._again(resume=bool(newest))
        if newest:
            return f"{where}; checkpoint-{newest} is complete: run {again} to go on"
        return where if newest is None else f"{where}, no checkpoint yet: {again} starts anew"

    def _program_stopped(self, by: str) -> str:
        return f"{by}: whether it saved is the program's own affair; {self._job.again} starts it again"
