"""One attempt of a run on this machine: its agent and its ranks, watched from their start until none is left."""

import math
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from dsrun.launch.environment import run_arguments
from dsrun.launch.supervisor import reaper
from dsrun.launch.supervisor.ending import AGENT_TIMEOUT_S, AttemptContext, AttemptResult, UnreportedEnd, end_attempt
from dsrun.launch.supervisor.evidence import PIPE_VARIABLE, collect, evidence_folder, explain_hang
from dsrun.launch.supervisor.failures import FailureInputs, exit_code_of, interruption
from dsrun.launch.supervisor.watchdog import BEFORE_TRAINING, UNKNOWN_S, Activity, RankHang, Watchdog
from dsrun.launch.workers.agent import AgentProcess, AgentStarter
from dsrun.launch.workers.spawn import read_rank_statuses
from dsrun.runs.heartbeat import REGROUP, RankHeartbeat, StopRequest, read_beats
from dsrun.system import variables
from dsrun.system.host import oom_kills

# As often as the agent looks at its ranks (--monitor-interval in environment.run_arguments).
POLL_S = 0.1
BEFORE_TRAINING_S = 3.0
"""Before training there is nothing to save: ranks that were asked to stop have so long to leave."""
STRAGGLER_TIMEOUT_S = 10.0
"""When one rank has left, as asked, the others have so long to follow."""
NO_HEARTBEAT_PATIENCE_S = 600.0
"""Programs without heartbeats have so long to save when they are asked to stop."""
# After Ctrl-C nothing is saved: KeyboardInterrupt has so long to unwind.
INTERRUPT_TIMEOUT_S = 2.0
# The agent looks at its ranks every 0.1 s; a rank that failed longer ago and is not reported is a failure of its own.
_AGENT_REPORT_S = 0.5
# One that has ended well is no failure while its agent waits for a busy machine to let it look.
_CLEAN_EXIT_REPORT_S = 60.0
_STOP_STATUSES = (-signal.SIGTERM, -signal.SIGUSR1)


class RunAttempt:
    """Attempt number `number`, of the nodes that take part in it now."""

    def __init__(self, context: AttemptContext, number: int) -> None:
        self.job = job = context.job
        self.number = number
        self._placed = job.among(context.others.members) if job.nnodes > 1 else job
        self._folder = context.scratch / f"attempt-{number}"
        self._stop_requests = context.stop_requests
        self._log_begins = context.log.stat().st_size if context.log.exists() else 0
        self._context = context
        self._watch = Watchdog(context.limits, beat_expected=not job.external)
        self._activity = Activity()
        self._unreported_end = UnreportedEnd(context.waiting)
        self._pids: dict[int, int] = {}
        self._ended: dict[int, int] = {}
        self._missing: dict[int, float] = {}
        self._codes: dict[int, int] = {}
        self._signalled: set[int] = set()
        self._signalled_at: float | None = None
        self._interrupted_at: float | None = None
        self._beats: dict[int, RankHeartbeat] = {}
        self._hang: RankHang | None = None
        self._env: dict[str, str] = {}
        self._by_others = False
        self._unkillable: str | None = None
        self._evidence: Path | None = None
        self._last_well = self._began = time.monotonic()
        self._stalled = 0.0
        self._began_at = time.time()
        self._ooms = oom_kills()

    def run(self, starter: AgentStarter, env: Mapping[str, str], port: int) -> AttemptResult:
        """Start, watch to the end, and leave no process but what `starter` spares."""
        for name in ("beats", "failures"):
            (self._folder / name).mkdir(parents=True)
        own = {
            variables.HEARTBEAT: str(self._folder / "beats"),
            variables.FAILURES: str(self._folder / "failures"),
            variables.RANKS: str(self._folder / "ranks"),
            variables.ATTEMPT: str(self.number),
        }
        if self.job.topology.device == "cuda":
            # Where torch makes a named pipe for each rank, by which it is asked for the flight recorder's dump.
            own |= {name: str(self._folder / "dump-") for name in [PIPE_VARIABLE] if name not in env}
        own |= {"NODE_RANK": str(self._placed.node_rank)} if self.job.external and "NODE_RANK" in env else {}
        self._env = {**env, **own}
        arguments = run_arguments(self._placed, attempt=self.number, port=port, logs=self._folder / "agent")
        agent = starter.start(arguments, self._env, ranks=self.job.topology.workers)
        try:
            code = self._watch_until_end(agent)
            noticed = time.monotonic() - self._last_well
            if code is None:
                self._collect_evidence()
            if self._stop_requests.force_quit is None and not self._stop_requests.interrupted:
                # Before anything is ended, which may take long, or for ever.
                self._context.record_failing(self.number, self._result(code, noticed))
        finally:
            self._context.observe(self.number, {}, {})  # these process ids may be another program's from now on
            self._unkillable = end_attempt(self._context, agent, starter, self._pids)
        return self._result(code, noticed)

    def _watch_until_end(self, agent: AgentProcess) -> int | None:
        """The agent's return code; None when the attempt must be ended."""
        while True:
            code = agent.poll()
            self._poll()
            code = self._unreported_end.code(agent) if code is None else code
            code = 0 if code is None and self._all_ended_well(agent) else code
            self._context.poll()
            if code is not None:
                self._request_stop_if_signalled(code)
                return code
            if self._failed(agent) or self._must_end(agent):
                return None
            self._last_well = time.monotonic()
            time.sleep(POLL_S)
            self._stalled = max(0.0, time.monotonic() - self._last_well - POLL_S)

    def _poll(self) -> None:
        """Take in what has happened since the last look."""
        for rank_status in read_rank_statuses(self._folder / "ranks"):
            self._pids[rank_status.rank] = rank_status.pid
            if rank_status.status is not None and rank_status.rank not in self._ended:
                first = not any(self._ended.values())  # the agent ends the others with SIGTERM
                self._ended[rank_status.rank] = rank_status.status
                if first and not self.job.external:
                    self._request_stop_if_signalled(rank_status.status, rank=rank_status.rank)
        now = time.monotonic()
        self._beats = read_beats(self._folder / "beats")
        states = {rank: reaper.state_and_parent(pid)[0] for rank, pid in self._alive().items()}
        # One whose threads still give memory back, such as pinned buffers of asynchronous I/O, cannot be waited for by
        # the agent yet.
        gone = [rank for rank in states if not reaper.lives(self._pids[rank])]
        self._missing = {rank: self._missing.get(rank, now) for rank in gone}
        codes = {rank: reaper.exit_code(self._pids[rank]) for rank in gone}
        self._codes |= {rank: code for rank, code in codes.items() if code is not None}
        living = {rank: state for rank, state in states.items() if rank not in gone}
        beats = {rank: beat for rank, beat in self._beats.items() if rank in living}
        computed = self._activity.update({rank: self._pids[rank] for rank in living}, now)
        self._hang = self._watch.poll(beats, living, now, computed, self._signalled_at)
        self._context.observe(self.number, self._beats, {rank: self._pids[rank] for rank in living})

    def _alive(self) -> dict[int, int]:
        """The ranks that have not ended as far as the agent has reported."""
        return {rank: pid for rank, pid in self._pids.items() if rank not in self._ended}

    def _request_stop_if_signalled(self, status: int, *, rank: int | None = None) -> None:
        """A process that had no handler yet was asked to stop, and died of it."""
        if status in _STOP_STATUSES and self._signalled_at is None:
            self._stop_requests.add(StopRequest.now(signal.Signals(-status).name, rank))

    def _failed(self, agent: AgentProcess) -> bool:
        """Whether a rank died or hangs. What happens to ranks that were asked to stop is no failure."""
        if self._hang is not None or self._never_started():
            return True
        if self._signalled_at is not None or self._stop_requests.stop():
            return False
        ended = self._unreported(agent) or any(self._ended.values())
        return ended and not self._stop_requests.program_asked()

    def _all_ended_well(self, agent: AgentProcess) -> bool:
        """Whether all ranks have ended with 0 and their agent, which is stopped for example, takes no notice."""
        codes = [*self._ended.values(), *(self._codes.get(rank) for rank in self._missing)]
        if agent.pid is None or not reaper.lives(agent.pid) or codes != [0] * self.job.topology.workers:
            return False
        stopped = reaper.state_and_parent(agent.pid)[0] == "T"
        stuck = self._agent_is_stuck(time.monotonic(), AGENT_TIMEOUT_S if stopped else _CLEAN_EXIT_REPORT_S)
        if stuck:
            self._context.waiting(f"all ranks have ended well; their agent {'is stopped' * stopped or 'is stuck'}", 0.0)
        return stuck

    def _never_started(self) -> bool:
        """Whether the agent, or what should have forked it, has long started no rank."""
        limit = float("inf") if self.job.hang_timeout == 0 else max(UNKNOWN_S, self.job.hang_timeout or 0.0)
        return not self._pids and time.monotonic() - self._began > limit

    def _unreported(self, agent: AgentProcess) -> bool:
        """Whether a rank is gone whose end the agent should have reported by now."""
        pid, now = agent.pid, time.monotonic()
        # Its ranks die with it, and who has forked it may need a moment to report it.
        alive = pid is None or reaper.lives(pid)
        # The agent may know more of one whose end is unknown; it may be kept from the processor.
        codes = {rank: self._codes.get(rank) if alive else None for rank in self._missing}
        patience = {None: AGENT_TIMEOUT_S, 0: math.inf}
        return any(now - since > patience.get(codes[rank], _AGENT_REPORT_S) for rank, since in self._missing.items())

    def _must_end(self, agent: AgentProcess) -> bool:
        """Whether the attempt has to end now; forwards a stop request to the ranks."""
        if self._stop_requests.force_quit is not None:
            return True
        if self._context.others.check() and not self._stop_requests.program_asked():
            self._by_others = True
            return True
        if self._stop_requests.interrupted:
            return self._interrupt()
        if self._trains() and self._context.others.must_regroup():
            self._context.others.announce_stop(StopRequest.now(REGROUP))
        request = self._context.others.stop_requested()
        if request is not None:
            self._stop_requests.add(request, announce=False)
        request = self._stop_requests.stop()
        if request is None and interruption(self._folder / "failures") is not None:
            request = StopRequest()
            self._stop_requests.add(request)
        return request is not None and self._forward(request, agent)

    def _trains(self) -> bool:
        """Whether all ranks can save now. Of a program of the user's own nobody knows: it is not asked to leave."""
        beats = [self._beats.get(rank) for rank in self._alive()]
        return not self.job.external and bool(beats) and all(beat and beat.phase == "training" for beat in beats)

    def _interrupt(self) -> bool:
        now = time.monotonic()
        if self._interrupted_at is None:
            self._interrupted_at = now
            for pid in self._alive().values():
                reaper.kill(pid, signal.SIGINT)
        return not self._alive() or now - self._interrupted_at > INTERRUPT_TIMEOUT_S

    def _forward(self, request: StopRequest, agent: AgentProcess) -> bool:
        """Signal the ranks, but for the one that the request came from; whether they have taken too long to exit."""
        now = time.monotonic()
        self._signalled_at = self._signalled_at or now
        signum = signal.SIGUSR1
        if self.job.external:
            signum = signal.Signals.__members__.get(request.signal, signal.SIGTERM)
        for rank, pid in self._alive().items():
            if rank not in self._signalled:
                self._signalled.add(rank)
                if self.job.external or rank != request.rank:
                    reaper.kill(pid, signum)
        return self._agent_is_stuck(now) or now - self._signalled_at > self._patience(now)

    def _agent_is_stuck(self, now: float, patience: float = AGENT_TIMEOUT_S) -> bool:
        """Whether all ranks have gone and their agent takes no notice, as when it is stopped."""
        gone = self._missing
        return bool(gone) and gone.keys() == self._alive().keys() and now - max(gone.values()) > patience

    def _patience(self, now: float) -> float:
        """Seconds that the ranks may take from being asked to stop until they have left."""
        if not self._pids:
            return 0.0
        if self.job.external and not self._beats:
            return self.job.patience or NO_HEARTBEAT_PATIENCE_S
        alive = self._alive()
        beats = [self._beats.get(rank) for rank in alive]
        if any(beat is None or beat.phase in BEFORE_TRAINING for beat in beats) and not self.job.external:
            return BEFORE_TRAINING_S
        if self._ended and alive:
            last = max((beat.time for beat in beats if beat), default=0.0)
            return max(last, self._signalled_at or now) - (self._signalled_at or now) + STRAGGLER_TIMEOUT_S
        return self.job.patience or float("inf")

    def _collect_evidence(self) -> None:
        """Of a failure or a hang, here or elsewhere."""
        others, stops = self._context.others, self._stop_requests
        hang = self._hang is not None or (self._by_others and others.hang_elsewhere())
        failed = self._missing or any(self._ended.values()) or self._never_started()
        if hang or (self._signalled_at is None and failed) or self._wait_for_others():
            self._collect()
        if hang:
            others.share_evidence(lambda: stops.force_quit is not None or stops.interrupted)

    def _collect(self) -> None:
        living = {rank: pid for rank, pid in self._alive().items() if rank not in self._missing}
        self._evidence = folder = evidence_folder(self.job.run, self.number)
        gpus = self.job.topology.device == "cuda"
        collect(folder, living, self._beats, self._env, began=self._began_at, gpus=gpus)
        if self._hang is not None:
            self._hang = explain_hang(self._hang, folder, living)

    def _wait_for_others(self) -> bool:
        """Whether this node's ranks have long waited, perhaps for one of the node whose part has failed."""
        now = time.monotonic()
        beats = [self._beats[rank] for rank in self._alive() if rank in self._beats]
        long = [now - beat.time > self._context.limits.limit(beat) / 2 for beat in beats]
        return self._by_others and bool(long) and all(long)

    def _result(self, code: int | None, noticed: float) -> AttemptResult:
        saved = interruption(self._folder / "failures")
        stop_requested = self._signalled_at is not None or saved is not None or self._stop_requests.stop() is not None
        left = stop_requested and (self.job.external or code != 0 or saved is not None)
        ended = dict(self._ended)
        if code is None:
            for rank in self._missing:
                # Gone, and the agent has not reported how (yet; or it is itself stopped). Unknown counts as SIGKILL.
                recorded = exit_code_of(self._folder / "failures", rank)
                found = self._codes.get(rank) if recorded is None else recorded
                ended.setdefault(rank, found or -signal.SIGKILL)
        failure_inputs = FailureInputs(
            failures=self._folder / "failures",
            log=self._context.log,
            log_begins=self._log_begins,
            ended=ended,
            agent=code,
            hang=self._hang,
            detected_s=round(noticed, 3),
            stalled_s=round(self._stalled, 3),
            steps={rank: beat.step for rank, beat in self._beats.items() if beat.phase not in BEFORE_TRAINING},
            out_of_memory=oom_kills() > self._ooms,
            evidence=self._evidence,
            node=self.job.node_rank,
            unstarted_s=round(time.monotonic() - self._began) if self._never_started() else None,
        )
        return AttemptResult(
            ok=code == 0 or stop_requested,
            stop_requested=left,
            by_others=self._by_others,
            saved=saved.get("path") if saved else None,
            failure_inputs=failure_inputs,
            unkillable=self._unkillable,
        )
