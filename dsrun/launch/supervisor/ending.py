"""What an attempt is given, and how it ended. Ends the processes of an attempt, names those that no signal can end, and
waits until their GPU memory is free."""

import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from dsrun.datafiles import toml_beside
from dsrun.launch.context import TrainingJob
from dsrun.launch.coordinator.messages import Coordinator
from dsrun.launch.signals import StopRequests
from dsrun.launch.supervisor import reaper
from dsrun.launch.supervisor.failures import FailureInputs
from dsrun.launch.supervisor.watchdog import PhaseLimits
from dsrun.launch.workers.agent import AgentProcess, AgentStarter
from dsrun.runs.heartbeat import RankHeartbeat
from dsrun.system.files import text_of_file


@dataclass(frozen=True, kw_only=True)
class AttemptResult:
    """How the attempt ended here.

    `ok`: all ranks exited with 0, or were ended after a stop request with nothing to save; `stop_requested`: they were
    asked to stop; `by_others`: ended because another node's part has failed; `saved` is the checkpoint that they left;
    `unkillable` the line about processes that no signal ends, None where there are none."""

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


WaitingCallback = Callable[[str, float], None]
"""Takes a line about what is waited for, and the seconds that are left to it."""

AGENT_TIMEOUT_S = 5.0
"""Seconds in which an agent's end must be reported by what has started it."""
END_S = 40.0
"""Seconds in which all processes of an attempt must have ended; below what other nodes wait for this one (60 s)."""
_NAMES: Mapping[str, Mapping[str, str]] = toml_beside(__file__)


def end_attempt(
    context: AttemptContext, agent: AgentProcess, starter: AgentStarter, ranks: Mapping[int, int]
) -> str | None:
    """End the processes of an attempt but those that `starter` keeps, and wait until its agent's exit is reported. As
    `end_processes`: beside one that cannot be killed there must be no new attempt, as both could write to the same
    files."""
    stops = context.stop_requests
    # Without an agent the zygote still has the request, which it must not follow any more.
    kept = starter.kept_processes() if agent.pid is not None else set()
    unkillable = end_processes(
        context.run_id, spare=kept, ranks=ranks, waiting=context.waiting, give_up=lambda: stops.force_quit is not None
    )
    deadline = time.monotonic() + AGENT_TIMEOUT_S
    while kept and agent.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    if kept and agent.poll() is None:
        # The zygote does not answer: it is stopped. The next attempt would wait for it for ever.
        reaper.end(context.run_id)
    return unkillable


class UnreportedEnd:
    """The end of an agent of which the process that has forked it, itself stopped, does not tell."""

    def __init__(self, waiting: WaitingCallback) -> None:
        self._waiting = waiting
        self._since: float | None = None

    def code(self, agent: AgentProcess) -> int | None:
        """Its return code, once it has ended AGENT_TIMEOUT_S seconds ago; None before."""
        pid, now = agent.pid, time.monotonic()
        code = None if pid is None else reaper.exit_code(pid)
        if pid is None or code is None:
            self._since = None
            return None
        self._since = self._since or now
        if now - self._since <= AGENT_TIMEOUT_S:
            return None
        parent = reaper.state_and_parent(pid)[1]
        self._waiting(f"the agent of the ranks has ended, and process {parent}, which started it, is stopped", 0.0)
        return code


def end_processes(
    run_id: str,
    *,
    spare: set[int],
    ranks: Mapping[int, int],
    waiting: WaitingCallback,
    give_up: Callable[[], bool],
    limit_s: float = END_S,
) -> str | None:
    """Kill all processes of `run_id` but `spare`; None once they have ended.

    Where some cannot be killed, `waiting` is told of them (line, seconds that are left), and after `limit_s`, or on
    `give_up`, this returns the line. `ranks` are their process ids, by rank."""
    deadline = time.monotonic() + limit_s
    told = False
    while not reaper.end(run_id, spare=spare, within_s=limit_s / 4):
        line = describe(reaper.members(run_id, spare=spare), ranks)
        if give_up() or time.monotonic() >= deadline:
            return line
        if not told:
            told = True
            waiting(line, deadline - time.monotonic())
    return None


def describe(pids: Iterable[int], ranks: Mapping[int, int]) -> str:
    """What the processes that cannot be killed wait for: "rank 1 (process 4711) cannot be killed: uninterruptible sleep
    in nfs_wait_bit, in write to /mnt/data/x"."""
    by_pid = {pid: rank for rank, pid in ranks.items()}
    found = [f"{_name(pid, by_pid)} cannot be killed: {_wait(pid)}" for pid in sorted(pids)]
    return "; ".join(found) or "a process of this run cannot be killed, and is seen no more"


def _name(pid: int, ranks: Mapping[int, int]) -> str:
    if pid in ranks:
        return f"rank {ranks[pid]} (process {pid})"
    return f"process {pid} ({_text(pid, 'comm') or '?'})"


def _wait(pid: int) -> str:
    state = reaper.state_and_parent(pid)[0]
    place = _text(pid, "wchan")
    parts = [_NAMES["states"].get(state, f"state {state or 'unknown'}")]
    if place not in ("", "0"):
        parts[0] += f" in {place}"
    return ", ".join(parts + _call(pid))


def _call(pid: int) -> list[str]:
    """The system call that a process is in, and the file that it is about, as far as the kernel shows them. Nothing
    here touches the file itself, or the memory of the process: who does might wait for the same."""
    words = _text(pid, "syscall").split()
    if len(words) < 2 or not words[0].isdecimal():
        return []
    first = int(words[1], 16)
    name = _NAMES.get(platform.machine(), {}).get(str(int(words[0])))
    if name is None:
        return [f"in system call {int(words[0])}"]
    with suppress(OSError):
        return [f"in {name} on {Path(f'/proc/{pid}/fd/{first}').readlink()}"]
    return [f"in {name}"]


def _text(pid: int, name: str) -> str:
    return text_of_file(Path(f"/proc/{pid}/{name}")).strip()


GPU_MEMORY_S = 50.0
"""Seconds to wait at most: the driver takes seconds, after a fault longer. What is held then is somebody else's."""
_SLACK = 1 << 30  # bytes: contexts of monitoring tools, which come and go
_POLL_S = 0.5

MemoryUsed = Callable[[], Mapping[str, int]]
"""The bytes in use on each of the run's GPUs, by UUID; nothing without GPUs."""


class GpuMemory:
    """The memory of this machine's GPUs that was in use before the first attempt, and what is in use now."""

    def __init__(self, used: MemoryUsed) -> None:
        self._used = used
        self._before = used()

    def held(self) -> dict[str, int]:
        """The bytes of each GPU that are in use beyond what was before the run, where they are more than 1 GiB."""
        if not self._before:
            return {}
        now = self._used()
        more = {uuid: now.get(uuid, 0) - before for uuid, before in self._before.items()}
        return {uuid: size for uuid, size in more.items() if size > _SLACK}

    def wait_until_free(self, stop_wanted: Callable[[], bool], *, timeout_s: float = GPU_MEMORY_S) -> dict[str, int]:
        """Wait until nothing is held, `timeout_s` seconds at most, or a stop is wanted; what is still held."""
        until = time.monotonic() + timeout_s
        while (held := self.held()) and time.monotonic() < until and not stop_wanted():
            time.sleep(_POLL_S)
        return held
