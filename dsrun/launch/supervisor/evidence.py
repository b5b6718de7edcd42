"""Collects what the ranks of this node were doing before they are ended, and where they stand on request."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from dsrun.diagnosis.hangs import blamed, groups, name_ranks, read_standings, summary
from dsrun.launch.supervisor.policy import AttemptFailure
from dsrun.launch.supervisor.reaper import state_and_parent
from dsrun.launch.supervisor.watchdog import RankHang
from dsrun.runs.folder import RunFolder
from dsrun.runs.heartbeat import RankHeartbeat
from dsrun.system.build_locks import locks_in_time
from dsrun.system.files import text_of_file

SUMMARY_FILE = "summary.txt"


def evidence_folder(run: Path, attempt: int) -> Path:
    """Where the supervisors of all nodes collect what their ranks were doing."""
    return RunFolder(run).logs / f"evidence-attempt-{attempt}"


def explain_hang(hang: RankHang, folder: Path, ranks: Collection[int]) -> RankHang:
    """`hang` with where this node's `ranks` stand, by the evidence in `folder`, and the rank that is to blame."""
    with suppress(OSError):
        standings = [each for each in read_standings(folder) if each.rank in ranks]
        rank = blamed(standings, hang.rank)
        stopped = any(each.rank == rank and each.place.kind == "stopped" for each in standings)
        return replace(
            hang, rank=rank, stopped=stopped or (hang.stopped and rank == hang.rank), where=summary(standings)
        )
    return hang


def explain_hang_of_nodes(failure: AttemptFailure, folder: Path, workers: int, nodes: Sequence[int]) -> AttemptFailure:
    """On the first node: the same for the ranks of all `nodes`, `workers` on each; writes summary.txt into `folder`."""
    with suppress(OSError):
        standings = read_standings(folder)
        where = summary(standings)
        if where and failure.rank is not None:
            lines = [f"{name_ranks(group.ranks)}: {group.name}\n" for group in groups(standings)]
            (folder / SUMMARY_FILE).write_text("".join(lines), encoding="utf-8")
            if all(nodes[each.rank // workers] == failure.node for each in standings):
                return failure
            rank = blamed(standings, failure.rank)
            node = nodes[rank // workers]
            silent = f"no sign of life for {failure.detected_s:.0f} s: " if failure.detected_s else ""
            return replace(failure, rank=rank, node=node, message=f"rank {rank} hangs: {silent}{where}")
    return failure


# With STACKS_S, DUMPS_S and RAS_S below less than EVIDENCE_TIMEOUT_S of the coordinator, which the other nodes wait.
PY_SPY_S = 7.0
# It does not stop the process it reads, and finds no frame where that happens to run.
_SPY_TRIES = 3
_FRAME = re.compile(rb"^    \S", re.MULTILINE)
STACKS_S = 1.0
_FILES = ("status", "wchan", "syscall", "stack", "cmdline")
# torch's own names and default (ProcessGroupNCCL, FlightRecorder).
_DUMP_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
PIPE_VARIABLE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
DUMPS_S = 4.0
_POLL_S = 0.05
# By which the clocks of a file server and of this machine, and its time stamps of files, may differ.
_CLOCKS_S = 1.0
_DUMP_DEFAULT = "/tmp/nccl_trace_rank_"
RAS_S = 2.0
_RAS_VARIABLE = "NCCL_RAS_ADDR"
_RAS_SWITCH = "NCCL_RAS_ENABLE"
_RAS_DEFAULT = "localhost:28028"


def collect(
    folder: Path,
    pids: Mapping[int, int],
    beats: Mapping[int, RankHeartbeat],
    env: Mapping[str, str],
    *,
    began: float,
    gpus: bool = False,
) -> None:
    """Write into `folder` what can be learned of the living ranks `pids` (rank → process id) in a few seconds.

    Besides the stacks: with `gpus` nccl-ras.txt, and the dumps of NCCL's flight recorder since `began` (seconds since
    the epoch)."""
    with suppress(OSError):  # a full disk must not keep the run from being ended
        folder.mkdir(parents=True, exist_ok=True)
        _remove_earlier(folder, began)
        asked = time.time()
        # First of all: torch dumps while the stacks are taken.
        triggered = _trigger_flight_recorder(env, pids)
        collect_stacks(folder, pids, beats, env)
        _await_dumps(env, triggered, asked)
        _copy_flight_recorder(folder, env, began)
        if gpus and env.get(_RAS_SWITCH) != "0" and (text := query_ras(env.get(_RAS_VARIABLE) or _RAS_DEFAULT)):
            (folder / "nccl-ras.txt").write_text(text)


def _remove_earlier(folder: Path, began: float) -> None:
    """The evidence of the attempt of this number of an earlier start."""
    for file in folder.iterdir():
        with suppress(OSError):
            if file.stat().st_mtime < began:
                file.unlink()


def collect_stacks(
    folder: Path, pids: Mapping[int, int], beats: Mapping[int, RankHeartbeat], env: Mapping[str, str]
) -> None:
    """Write into `folder` where the living ranks `pids` (rank → process id) stand. Raises OSError.

    rank-R.proc.txt: what the kernel says of the process and its threads, and of one that waits for another build of an
    operation the locks that there are by `env`, its environment. rank-R.stacks.txt: the Python stacks of all
    its threads, from py-spy where it is installed and may look, which also sees a stopped process; else from the
    process itself (faulthandler, by SIGUSR2) where it said that it answers."""
    for rank, pid in pids.items():
        (folder / f"rank-{rank}.proc.txt").write_text(describe(pid, beats.get(rank)))
    seen = _spy(folder, pids)
    _dump_stacks(folder, {rank: pid for rank, pid in pids.items() if rank not in seen}, beats)
    waiting = [rank for rank in pids if "file_baton" in text_of_file(folder / f"rank-{rank}.stacks.txt")]
    locks = ", ".join(map(str, locks_in_time(env, STACKS_S))) if waiting else ""
    for rank in waiting if locks else ():
        with (folder / f"rank-{rank}.proc.txt").open("a") as file:
            file.write(f"== build locks\n{locks}\n")


def query_ras(address: str) -> str:
    """What NCCL's RAS service (2.24 and newer) says of all communicators of the job; "" where there is none.

    One port per machine answers lines of text ("nc localhost 28028", in NCCL's documentation)."""
    host, _, port = address.rpartition(":")
    parts = []
    with suppress(OSError, ValueError), socket.create_connection((host.strip("[]"), int(port)), RAS_S) as connection:
        connection.sendall(b"verbose status\n")
        deadline = time.monotonic() + RAS_S
        while part := connection.recv(1 << 16):  # until it closes the connection, or the time is over
            parts.append(part)
            connection.settimeout(max(0.01, deadline - time.monotonic()))
    return b"".join(parts).decode(errors="replace")


def describe(pid: int, beat: RankHeartbeat | None) -> str:
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
    seen: set[int] = set()
    deadline = time.monotonic() + PY_SPY_S
    for _ in range(_SPY_TRIES if spy else 0):
        left = {rank: pid for rank, pid in pids.items() if rank not in seen}
        seen |= _spy_once(str(spy), folder, left, deadline)
    return seen


def _spy_once(spy: str, folder: Path, pids: Mapping[int, int], deadline: float) -> set[int]:
    files = {rank: folder / f"rank-{rank}.stacks.txt" for rank in pids}
    running = {}
    for rank, pid in pids.items():
        with files[rank].open("wb") as out:
            argv = [spy, "dump", "--nonblocking", "--pid", str(pid)]
            running[rank] = subprocess.Popen(argv, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    seen = set()
    for rank, process in running.items():
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(max(0.0, deadline - time.monotonic()))
            if code == 0 and _FRAME.search(files[rank].read_bytes()):
                seen.add(rank)
                continue
        process.kill()
        with suppress(subprocess.TimeoutExpired):  # it may wait for what the rank waits for
            process.wait(STACKS_S)
        files[rank].unlink()
    return seen


def _dump_stacks(folder: Path, pids: Mapping[int, int], beats: Mapping[int, RankHeartbeat]) -> None:
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


def _trigger_flight_recorder(env: Mapping[str, str], pids: Mapping[int, int]) -> list[int]:
    """Have the ranks dump it; returns those that can. torch reads `<stem><rank>.pipe` about once a second (DumpPipe in
    ProcessGroupNCCL.cpp)."""
    triggered = []
    for rank in pids if PIPE_VARIABLE in env else ():
        with suppress(OSError):
            # Not blocking: a rank that has died reads its pipe no more, and open(2) would wait for it (fifo(7): ENXIO).
            pipe = os.open(f"{env[PIPE_VARIABLE]}{rank}.pipe", os.O_WRONLY | os.O_NONBLOCK)
            os.write(pipe, b"1\n")
            os.close(pipe)
            triggered.append(rank)
    return triggered


def _dump_prefix(env: Mapping[str, str]) -> Path:
    return Path(next((env[name] for name in _DUMP_VARIABLES if name in env), _DUMP_DEFAULT))


def _await_dumps(env: Mapping[str, str], ranks: Collection[int], asked: float) -> None:
    prefix = str(_dump_prefix(env))
    deadline = time.monotonic() + DUMPS_S
    left = set(ranks)
    while left and time.monotonic() < deadline:
        for rank in list(left):
            with suppress(OSError):
                status = Path(f"{prefix}{rank}").stat()
                if status.st_size and status.st_mtime >= asked - _CLOCKS_S:
                    left.discard(rank)
        time.sleep(_POLL_S)


def _copy_flight_recorder(folder: Path, env: Mapping[str, str], began: float) -> None:
    prefix = _dump_prefix(env)
    for dump in prefix.parent.glob(prefix.name + "*"):
        with suppress(OSError):
            if dump.is_file() and dump.stat().st_mtime >= began:
                shutil.copy(dump, folder / dump.name)
