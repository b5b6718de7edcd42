"""Detects a rank that hangs, from the heartbeats, and collects what the ranks were doing before they are ended."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dsrun.launch.supervisor.reaper import state_and_parent
from dsrun.runs.heartbeat import Beat

BEFORE_TRAINING = ("starting", "loading", "tokenising")

SHORTEST_S = 10.0
"""The least time without a step that counts as hanging, and how long a rank may stand stopped."""
TIMES_SLOWEST = 3.0
OTHER_PHASES_S = 1800.0
"""The limit outside the loop of steps, and before the second step: loading, saving and compiling have no beat."""

# A supervisor that did not look for so long was itself stopped, or the machine asleep: no rank's silence counts.
_ABSENT_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Hang:
    """Rank `rank` gave no sign of life for `silent_s` seconds; `limit_s` allowed. `stopped`: by SIGSTOP or the like."""

    rank: int
    silent_s: float
    limit_s: float
    stopped: bool

    @property
    def message(self) -> str:
        """One line for the user."""
        if self.stopped:
            return f"rank {self.rank} is stopped (SIGSTOP) and gave no sign of life for {self.silent_s:.0f} s"
        return f"rank {self.rank} hangs: no sign of life for {self.silent_s:.0f} s (limit {self.limit_s:.0f} s)"


def limit_of(beat: Beat, hang_timeout: float | None) -> float:
    """Seconds this rank may be silent.

    In the loop of steps `hang_timeout`, by default three times the slowest step and at least ten seconds. Elsewhere
    half an hour, or `hang_timeout` where that is longer. `hang_timeout` 0 is for ever.
    """
    if hang_timeout == 0:
        return math.inf
    if beat.phase == "training" and beat.slowest_step > 0:
        return hang_timeout or max(SHORTEST_S, TIMES_SLOWEST * beat.slowest_step)
    return max(OTHER_PHASES_S, hang_timeout or 0)


class Watchdog:
    """Looks at all ranks of this machine again and again.

    `hang_timeout` is in seconds, 0 for never, None for the default.
    """

    def __init__(self, hang_timeout: float | None) -> None:
        self._timeout = hang_timeout
        self._stopped: dict[int, float] = {}
        self._looked: float | None = None
        self._since = -math.inf

    def poll(self, beats: Mapping[int, Beat], states: Mapping[int, str], now: float) -> Hang | None:
        """The rank that hangs, None where none does.

        `beats` are those of the ranks that live, `states` their letters of proc(5), `now` is by the clock of the
        beats, in seconds. One rank that hangs stops all others in their next collective operation, so the one to blame
        is one that is stopped, else the one that got least far.
        """
        if self._looked is not None and now - self._looked > _ABSENT_S:
            self._since = now
        self._looked = now
        self._stopped = {rank: self._stopped.get(rank, now) for rank in states if states[rank] == "T"}
        stopped = self._long_stopped(beats, now)
        if stopped:
            return stopped
        silent = {rank: now - max(beat.time, self._since) for rank, beat in beats.items()}
        limits = {rank: limit_of(beat, self._timeout) for rank, beat in beats.items()}
        late = [rank for rank in beats if silent[rank] > limits[rank]]
        busy = any(beats[rank].phase != "training" and rank not in late for rank in beats)
        if not late or busy:  # the others wait for the one that saves
            return None
        first = min(late, key=lambda rank: (states.get(rank) != "T", beats[rank].step, beats[rank].time))
        return Hang(rank=first, silent_s=silent[first], limit_s=limits[first], stopped=states.get(first) == "T")

    def _long_stopped(self, beats: Mapping[int, Beat], now: float) -> Hang | None:
        """A rank that has been stopped for long, in whatever phase."""
        limit = math.inf if self._timeout == 0 else self._timeout or SHORTEST_S
        for rank, since in self._stopped.items():
            if now - max(since, self._since) > limit:
                last = beats[rank].time if rank in beats else since
                return Hang(rank=rank, silent_s=now - max(last, self._since), limit_s=limit, stopped=True)
        return None


PY_SPY_S = 5.0
STACKS_S = 1.0
_FILES = ("status", "wchan", "syscall", "stack", "cmdline")
# torch's own names and default (ProcessGroupNCCL, FlightRecorder).
_DUMP_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_PIPE_VARIABLE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
_DUMP_DEFAULT = "/tmp/nccl_trace_rank_"


def collect(
    folder: Path, pids: Mapping[int, int], beats: Mapping[int, Beat], env: Mapping[str, str], *, began: float
) -> None:
    """Write into `folder` what can be learned of the living ranks `pids` (rank → process id) in a few seconds.

    rank-R.proc.txt: what the kernel says of the process and its threads. rank-R.stacks.txt: the Python stacks of all
    its threads, from py-spy where it is installed and may look, which also sees a stopped process; else from the
    process itself (faulthandler, by SIGUSR2) where it said that it answers. NCCL's flight recorder: its dumps since
    `began` (seconds since the epoch).
    """
    with suppress(OSError):  # a full disk must not keep the run from being ended
        folder.mkdir(parents=True, exist_ok=True)
        _trigger_flight_recorder(env, pids)
        for rank, pid in pids.items():
            (folder / f"rank-{rank}.proc.txt").write_text(describe(pid, beats.get(rank)))
        seen = _spy(folder, pids)
        _dump_stacks(folder, {rank: pid for rank, pid in pids.items() if rank not in seen}, beats)
        _copy_flight_recorder(folder, env, began)


def describe(pid: int, beat: Beat | None) -> str:
    """The kernel's files about a process and its threads, and its last sign of life."""
    parts = [f"last sign of life: {beat}"] if beat else []
    process = Path("/proc", str(pid))
    parts += [f"== {name}\n{_read_text(process / name)}" for name in _FILES]
    for task in sorted(process.glob("task/*")):
        states = [_read_text(task / name) for name in ("comm", "wchan", "syscall")]
        parts.append(f"== thread {task.name}: " + ", ".join(states))
    return "\n".join(parts) + "\n"


def _read_text(file: Path) -> str:
    try:
        return file.read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError as error:  # stack wants root, and the process may be gone
        return f"({error.strerror})"


def _spy(folder: Path, pids: Mapping[int, int]) -> set[int]:
    """The ranks whose stacks py-spy has written. The kernel may forbid it to look (kernel.yama.ptrace_scope)."""
    spy = shutil.which("py-spy", path=os.pathsep.join([str(Path(sys.executable).parent), os.defpath]))
    if spy is None:
        return set()
    files = {rank: folder / f"rank-{rank}.stacks.txt" for rank in pids}
    running = {}
    for rank, pid in pids.items():
        with files[rank].open("wb") as out:
            argv = [spy, "dump", "--nonblocking", "--pid", str(pid)]
            running[rank] = subprocess.Popen(argv, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    deadline = time.monotonic() + PY_SPY_S
    seen = set()
    for rank, process in running.items():
        with suppress(subprocess.TimeoutExpired):
            if process.wait(max(0.0, deadline - time.monotonic())) == 0:
                seen.add(rank)
                continue
        process.kill()
        process.wait()
        files[rank].unlink()
    return seen


def _dump_stacks(folder: Path, pids: Mapping[int, int], beats: Mapping[int, Beat]) -> None:
    """Have the ranks write their stacks into their logs, and copy that part of the logs."""
    sizes: dict[int, tuple[Path, int]] = {}
    for rank, pid in pids.items():
        can_answer = rank in beats and beats[rank].answers and beats[rank].pid == pid
        if can_answer and state_and_parent(pid)[0] not in ("", "Z", "T"):
            with suppress(OSError):
                log = Path(f"/proc/{pid}/fd/2").resolve()
                sizes[rank] = (log, log.stat().st_size)
                os.kill(pid, signal.SIGUSR2)
    if sizes:
        time.sleep(STACKS_S)  # faulthandler writes line by line, and does not say when it is done
    for rank, (log, size) in sizes.items():
        with suppress(OSError), log.open("rb") as file:
            file.seek(size)
            written = file.read()
            if b"most recent call first" in written:
                (folder / f"rank-{rank}.stacks.txt").write_bytes(written)


def _trigger_flight_recorder(env: Mapping[str, str], pids: Mapping[int, int]) -> None:
    if _PIPE_VARIABLE in env:
        for rank in pids:
            with suppress(OSError):
                pipe = os.open(f"{env[_PIPE_VARIABLE]}_{rank}.pipe", os.O_WRONLY | os.O_NONBLOCK)
                os.write(pipe, b"1\n")
                os.close(pipe)


def _copy_flight_recorder(folder: Path, env: Mapping[str, str], began: float) -> None:
    prefix = Path(next((env[name] for name in _DUMP_VARIABLES if name in env), _DUMP_DEFAULT))
    for dump in prefix.parent.glob(prefix.name + "*"):
        with suppress(OSError):
            if dump.is_file() and dump.stat().st_mtime >= began:
                shutil.copy(dump, folder / dump.name)
