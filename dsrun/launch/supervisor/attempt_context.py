"""What an attempt is given, and how it ended."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dsrun.launch.coordinator.messages import Coordinator
from dsrun.launch.signals import StopRequests
from dsrun.launch.supervisor.failures import FailureInputs
from dsrun.launch.supervisor.watchdog import PhaseLimits
from dsrun.launch.training_job import TrainingJob
from dsrun.runs.heartbeat import RankHeartbeat


@dataclass(frozen=True, kw_only=True)
class AttemptResult:
    """How the attempt ended here.

    `ok`: all ranks exited with 0, or were ended after a stop request with nothing to save; `stop_requested`: they were
    asked to stop; `by_others`: ended because another node's part has failed; `saved` is the checkpoint that they left;
    `unkillable` the line about processes that no signal ends, None where there are none.
    """

    ok: bool
    stop_requested: bool
    by_others: bool
    saved: str | None
    failure_inputs: FailureInputs
    unkillable: str | None = None


RankObserver = Callable[[int, Mapping[int, RankHeartbeat], Mapping[int, int]], None]
"""Takes in the attempt, the heartbeats, and the process ids of the living ranks, by rank; returns at once."""


@dataclass(frozen=True, kw_only=True)
class AttemptContext:
    """What all attempts of a run share. `scratch` is a folder of this machine's own, `run_id` what all processes of the
    family carry in their environment, `log` where agent and ranks write, `poll` what else to do at every look,
    `observe` what is to be shown of it, `record_failing` is called when an attempt has failed and nothing is ended yet,
    `waiting` with a line about what is waited for and the seconds that are left to it, `attend` with the nodes of the
    next attempt, if these are others than before, and `say` with what is being done from now on."""

    job: TrainingJob
    scratch: Path
    run_id: str
    stop_requests: StopRequests
    others: Coordinator
    log: Path
    poll: Callable[[], None]
    limits: PhaseLimits = field(default_factory=lambda: PhaseLimits(None))
    record_failing: Callable[[int, AttemptResult], None] = lambda _attempt, _result: None
    waiting: Callable[[str, float], None] = lambda _line, _seconds: None
    observe: RankObserver = lambda _attempt, _beats, _pids: None
    attend: Callable[[Sequence[int]], None] = lambda _nodes: None
    say: Callable[[str], None] = lambda _what: None
