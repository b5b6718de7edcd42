"""What hanging or orphaned ranks were doing, written down before they are ended."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from dsrun.launch.supervisor.reaper import state_and_parent
from dsrun.runs.heartbeat import Beat

PY_SPY_S = 5.0
STACKS_S = 1.0
_LOOK_S = 0.05
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
        _ask(folder, {rank: pid for rank, pid in pids.items() if rank not in seen}, beats)
        _copy_flight_recorder(folder, env, began)


def describe(pid: int, beat: Beat | None) -> str:
    """The kernel's files about a process and its threads, and its last sign of life."""
    parts = [f"last sign of life: {beat}"] if beat else []
    process = Path("/proc", str(pid))
    parts += [f"== {name}\n{_read(process / name)}" for name in _FILES]
    for task in sorted(process.glob("task/*")):
        words = [_read(task / name) for name in ("comm", "wchan", "syscall")]
        parts.append(f"== thread {task.name}: " + ", ".join(words))
    return "\n".join(parts) + "\n"


def _read(file: Path) -> str:
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


def _ask(folder: Path, pids: Mapping[int, int], beats: Mapping[int, Beat]) -> None:
    """Have the ranks write their stacks into their logs, and copy that part of the logs."""
    asked: dict[int, tuple[Path, int, int]] = {}
    for rank, pid in pids.items():
        log = Path(f"/proc/{pid}/fd/2")
        if rank in beats and beats[rank].answers and beats[rank].pid == pid:
            with suppress(OSError):
                asked[rank] = (log.resolve(), log.stat().st_size, _held_up(pid))
                os.kill(pid, signal.SIGUSR2)
    deadline = time.monotonic() + STACKS_S
    while asked and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        for rank, (log, size, before) in list(asked.items()):
            if state_and_parent(pids[rank])[0] in ("", "Z", "T"):  # gone, or stopped: no answer will come
                del asked[rank]
                continue
            has_answered = _held_up(pids[rank]) <= before
            with suppress(OSError), log.open("rb") as file:
                file.seek(size)
                said = file.read()
                if b"most recent call first" in said:
                    (folder / f"rank-{rank}.stacks.txt").write_bytes(said)
                    if has_answered:
                        del asked[rank]


def _held_up(pid: int) -> int:
    """In how many places of a process SIGUSR2 waits or is held up, as it is while faulthandler answers one line by line
    (SigPnd, ShdPnd and SigBlk of proc(5))."""
    bit = 1 << (signal.SIGUSR2 - 1)
    states = [Path("/proc", str(pid), "status"), *Path("/proc", str(pid), "task").glob("*/status")]
    masks = (line.split() for state in states for line in _read(state).splitlines())
    return sum(
        bool(int(words[1], 16) & bit)
        for words in masks
        if len(words) == 2 and words[0] in ("SigPnd:", "ShdPnd:", "SigBlk:")
    )


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
