"""What is written down of ranks before they are ended, with real processes in real trouble."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from dsrun.diagnosis.hangs import read_standings
from dsrun.launch.supervisor.evidence import collect, explain_hang, explain_hang_of_nodes, query_ras
from dsrun.launch.supervisor.policy import AttemptFailure
from dsrun.launch.supervisor.reaper import state_and_parent
from dsrun.launch.supervisor.watchdog import RankHang
from dsrun.runs.heartbeat import HeartbeatWriter, read_beats

RANK = """
import faulthandler, signal, sys, time
faulthandler.register(signal.SIGUSR2, all_threads=True)
def wait_for_the_others():
    print("ready", flush=True)
    time.sleep(300)
wait_for_the_others()
"""
# In place of torch's.
BATON = """
import time
class FileBaton:
    def wait(self):
        print("ready", flush=True)
        time.sleep(300)
"""
# One that answers as faulthandler does, out of a handler of C, and is held up after the first line.
SLOW = """
import ctypes, os, signal, time
@ctypes.CFUNCTYPE(None, ctypes.c_int)
def answer(signum):
    os.write(2, b"Current thread (most recent call first):\\n")
    time.sleep(0.5)
    os.write(2, b"  in the_second_line\\n")
ctypes.CDLL(None).signal(signal.SIGUSR2, answer)
print("ready", flush=True)
time.sleep(300)
"""


@pytest.fixture
def ranks(tmp_path):
    """Start a rank whose stderr is a log; returns its process id."""
    running = []

    def start(rank: int, code: str = RANK) -> int:
        log = (tmp_path / f"rank-{rank}.log").open("w")
        log.write("earlier words\n")
        log.flush()
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=log)
        running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        # Asleep: py-spy may not understand the stack of one that is just calling and returning.
        while state_and_parent(process.pid)[0] != "S":
            time.sleep(0.01)
        return process.pid

    yield start
    for each in running:
        each.kill()
        each.wait()


def beats_of(folder, pids, answers):
    for rank, pid in pids.items():
        heart = HeartbeatWriter(folder, rank, answers=answers)
        heart._beat = type(heart._beat)(**{**vars(heart._beat), "pid": pid})
        heart.step(7)
    return read_beats(folder)


@pytest.fixture
def pids(ranks):
    """Rank 0 waits, rank 1 is stopped."""
    found = {0: ranks(0), 1: ranks(1)}
    os.kill(found[1], signal.SIGSTOP)
    while state_and_parent(found[1])[0] != "T":
        time.sleep(0.01)
    return found


@pytest.fixture
def blind(monkeypatch, tmp_path):
    """py-spy is not allowed to look."""
    spy = tmp_path / "py-spy"
    spy.write_text("#!/bin/sh\necho 'Permission Denied: try again with sudo' >&2; exit 1\n")
    spy.chmod(0o755)
    monkeypatch.setattr("dsrun.launch.supervisor.evidence.shutil.which", lambda name, path: str(spy))


def test_stack_dump_of_stopped_rank_by_py_spy(pids, tmp_path, monkeypatch):
    """py-spy dumps the stack of a stopped rank too."""
    monkeypatch.setattr("dsrun.launch.supervisor.evidence.PY_SPY_S", 60)
    collect(tmp_path / "evidence", pids, {}, {}, began=time.time())
    for rank in pids:
        assert "wait_for_the_others" in (tmp_path / "evidence" / f"rank-{rank}.stacks.txt").read_text()
    assert "T (stopped)" in (tmp_path / "evidence" / "rank-1.proc.txt").read_text()


def test_lock_that_a_rank_waits_for_is_named(ranks, tmp_path, monkeypatch):
    """The stack tells that it is one of torch's builds, the folder which."""
    lock, package = tmp_path / "cpu_adam" / "lock", tmp_path / "torch"
    for folder in (lock.parent, package / "utils"):
        folder.mkdir(parents=True)
    for file in (lock, package / "__init__.py", package / "utils" / "__init__.py"):
        file.touch()
    (package / "utils" / "file_baton.py").write_text(BATON)
    monkeypatch.setattr("dsrun.launch.supervisor.evidence.PY_SPY_S", 60)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from torch.utils.file_baton import *; FileBaton().wait()"
    )
    collect(tmp_path / "evidence", {0: ranks(0, code)}, {}, {"TORCH_EXTENSIONS_DIR": str(tmp_path)}, began=time.time())
    [found] = read_standings(tmp_path / "evidence")
    assert (found.place.kind, found.place.name.rpartition(", ")[2]) == ("lock", str(lock))


def test_rank_whose_stack_py_spy_missed_is_looked_at_again(ranks, tmp_path, monkeypatch):
    """A rank that happens to run shows no frame to py-spy, which does not stop it."""
    first = tmp_path / "first"
    spy = tmp_path / "py-spy"
    thread = 'Thread 1 (active+gil): \\"MainThread\\"'
    spy.write_text(
        f'#!/bin/sh\necho "{thread}"\nif mkdir {first} 2>/dev/null; then exit 0; fi\n'
        "echo '    wait_for_the_others (train.py:7)'\n"
    )
    spy.chmod(0o755)
    monkeypatch.setattr("dsrun.launch.supervisor.evidence.shutil.which", lambda name, path: str(spy))
    collect(tmp_path / "evidence", {0: ranks(0)}, {}, {}, began=time.time())
    assert "wait_for_the_others" in (tmp_path / "evidence" / "rank-0.stacks.txt").read_text()
    assert first.is_dir()


@pytest.mark.usefixtures("blind")
def test_stack_dumps_of_responsive_ranks_and_state_of_all(pids, tmp_path, monkeypatch):
    """Ranks that answer dump their stacks; the process state of all is kept."""
    monkeypatch.setattr("dsrun.launch.supervisor.evidence.STACKS_S", 5)
    collect(tmp_path / "evidence", pids, beats_of(tmp_path / "beats", pids, True), {}, began=time.time())
    stacks = (tmp_path / "evidence" / "rank-0.stacks.txt").read_text()
    assert "in wait_for_the_others" in stacks
    assert "earlier words" not in stacks
    assert not (tmp_path / "evidence" / "rank-1.stacks.txt").exists()
    state = (tmp_path / "evidence" / "rank-1.proc.txt").read_text()
    assert "T (stopped)" in state
    assert "step=7" in state


@pytest.mark.usefixtures("blind")
def test_stack_dump_awaited_until_complete(ranks, tmp_path, monkeypatch):
    """A stack dump is waited for until it is complete."""
    monkeypatch.setattr("dsrun.launch.supervisor.evidence.STACKS_S", 5)
    pids = {0: ranks(0, SLOW)}
    collect(tmp_path / "evidence", pids, beats_of(tmp_path / "beats", pids, True), {}, began=time.time())
    assert "in the_second_line" in (tmp_path / "evidence" / "rank-0.stacks.txt").read_text()


@pytest.mark.usefixtures("blind")
def test_no_stack_dump_signal_without_faulthandler(ranks, tmp_path):
    """A rank that the signal would kill is not asked for its stack."""
    pids = {0: ranks(0)}
    collect(tmp_path / "evidence", pids, beats_of(tmp_path / "beats", pids, False), {}, began=time.time())
    assert [each.name for each in (tmp_path / "evidence").iterdir()] == ["rank-0.proc.txt"]


def test_flight_recorder_dumps_of_this_attempt_collected(tmp_path):
    """Dumps of the flight recorder are kept, those of earlier runs are not."""
    prefix = tmp_path / "dump-"
    old, new = tmp_path / "dump-0", tmp_path / "dump-1"
    old.write_text("old")
    os.utime(old, (1, 1))
    new.write_text("new")
    env = {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(prefix)}
    collect(tmp_path / "evidence", {}, {}, env, began=time.time() - 60)
    assert [each.name for each in (tmp_path / "evidence").iterdir()] == ["dump-1"]


def test_unwritable_evidence_folder_is_no_error(tmp_path):
    """An evidence folder that cannot be written is no reason to fail."""
    (tmp_path / "file").touch()
    collect(tmp_path / "file" / "evidence", {0: os.getpid()}, {}, {}, began=0.0)


def ras_server(answer: bytes):
    """A service as NCCL's: answers a line and closes the connection. Its address, and the lines that it got."""
    server = socket.create_server(("127.0.0.1", 0))
    lines = []

    def serve() -> None:
        with server, server.accept()[0] as connection:
            lines.append(connection.makefile().readline())
            connection.sendall(answer)

    threading.Thread(target=serve).start()
    return f"127.0.0.1:{server.getsockname()[1]}", lines


def test_nccl_ras_status_of_gpu_job_collected(tmp_path):
    address, lines = ras_server(b"NCCL version 2.27.3\nJob summary\n")
    env = {"NCCL_RAS_ADDR": address, "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(tmp_path / "none")}
    collect(tmp_path / "evidence", {}, {}, env, began=0.0, gpus=True)
    assert (tmp_path / "evidence" / "nccl-ras.txt").read_text() == "NCCL version 2.27.3\nJob summary\n"
    assert lines == ["verbose status\n"]


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense", "host.invalid:28028"])
def test_no_nccl_ras_service(address):
    assert query_ras(address) == ""


def test_evidence_of_earlier_start_removed(tmp_path):
    """The ranks of then, of which there may have been more, are not those of now."""
    evidence = tmp_path / "evidence"
    evidence.mkdir()
    for name in ("rank-7.stacks.txt", "summary.txt"):
        (evidence / name).touch()
        os.utime(evidence / name, (1, 1))
    env = {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(tmp_path / "none")}
    collect(evidence, {}, {}, env, began=time.time() - 60)
    assert not list(evidence.iterdir())


def stacks(folder, rank: int, *frames: str) -> None:
    lines = [f"    {function} ({place})" for function, place in (frame.split(" ") for frame in frames)]
    (folder / f"rank-{rank}.stacks.txt").write_text("\n".join(['Thread 1 (idle): "MainThread"', *lines]))


REDUCE = ("all_reduce torch/distributed/distributed_c10d.py:3", "step train.py:9")
LOADER = ("__next__ torch/utils/data/dataloader.py:7", "main train.py:5")


def test_hang_is_explained_by_own_ranks(tmp_path):
    """Those of other nodes may not all have been written yet."""
    for rank, frames in enumerate([REDUCE, REDUCE, LOADER, REDUCE, LOADER]):
        stacks(tmp_path, rank, *frames)
    hang = explain_hang(RankHang(rank=0, silent_s=12.0, limit_s=10.0, stopped=False), tmp_path, range(4))
    assert hang.rank == 2
    assert hang.message == (
        "rank 2 hangs: no sign of life for 12 s (limit 10 s): 3 of 4 ranks in all_reduce; rank 2 in DataLoader.__next__"
    )


def test_hang_of_nodes_blames_rank_of_another_node(tmp_path):
    for rank, frames in enumerate([REDUCE, REDUCE, LOADER, REDUCE]):
        stacks(tmp_path, rank, *frames)
    failure = AttemptFailure(
        cause="rank_hung", rank=0, node=0, exit_code=1, message="rank 0 hangs", step=7, detected_s=12.2
    )
    explained = explain_hang_of_nodes(failure, tmp_path, 2, range(9))
    assert (explained.rank, explained.node, explained.step) == (2, 1, 7)
    assert explained.message == (
        "rank 2 hangs: no sign of life for 12 s: 3 of 4 ranks in all_reduce; rank 2 in DataLoader.__next__"
    )
    assert (tmp_path / "summary.txt").read_text() == "ranks 0, 1 and 3: all_reduce\nrank 2: DataLoader.__next__\n"


def test_hang_without_evidence_stays_as_it_was(tmp_path):
    hang = RankHang(rank=1, silent_s=12.0, limit_s=10.0, stopped=True)
    assert explain_hang(hang, tmp_path / "nowhere", {1}) == hang
    failure = AttemptFailure(cause="rank_hung", rank=1, node=0, exit_code=1, message="rank 1 hangs")
    assert explain_hang_of_nodes(failure, tmp_path, 2, range(9)) == failure


def test_flight_recorder_is_asked_for_its_dump_and_awaited(tmp_path, monkeypatch):
    """As torch has it: a pipe for each rank, which is read about once a second."""
    monkeypatch.setattr("dsrun.launch.supervisor.evidence.DUMPS_S", 60)
    env = {
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(tmp_path / "pipe-"),
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(tmp_path / "dump-rank-"),
    }
    os.mkfifo(tmp_path / "pipe-3.pipe")
    reader = os.open(tmp_path / "pipe-3.pipe", os.O_RDONLY | os.O_NONBLOCK)

    def dump_when_asked() -> None:
        while not os.read(reader, 10):
            time.sleep(0.05)
        entry = {"collective_seq_id": 481, "state": "started", "profiling_name": "nccl:all_reduce", "is_p2p": False}
        (tmp_path / "dump-rank-3").write_text(json.dumps({"entries": [{**entry, "process_group": ["0", "default"]}]}))

    recorder = threading.Thread(target=dump_when_asked)
    recorder.start()
    collect(tmp_path / "evidence", {3: os.getpid()}, {}, env, began=time.time() - 60)
    recorder.join()
    os.close(reader)
    [standing] = read_standings(tmp_path / "evidence")
    assert (standing.recorded.operation, standing.recorded.number) == ("all_reduce", 481)
