"""`dsrun launch` on two nodes, which are two supervisors on this machine: real ranks, killed and restarted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from dsrun.runs.node_status import read_node_status
from dsrun.runs.records import read_records
from dsrun.system.net import free_port, port_is_free
from tests.forkserver.client import HEAVY

pytestmark = pytest.mark.train

ROOT = Path(__file__).parents[2]
# Each rank says who it is, and trains, in a way, until the file `end` is there.
PROGRAM = """
import os, sys, time
from pathlib import Path
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, attempt = dist.get_rank(), os.environ["DSRUN_ATTEMPT"]
Path(f"rank-{rank}-attempt-{attempt}").write_text(f"{os.getpid()} {os.getppid()}")
while True:
    more = torch.tensor([0 if Path("end").exists() else 1])
    dist.all_reduce(more, op=dist.ReduceOp.MIN)
    if not more.item():
        break
    time.sleep(0.05)
dist.destroy_process_group()
# A thread of gloo may still hold the last tensor, and letting go of it aborts a process that Python takes apart.
os._exit(0)
"""

# With a heartbeat; the rank of node 1 falls asleep in its third step.
HANGING = PROGRAM.replace(
    "while True:",
    """
from dsrun.runs.heartbeat import HeartbeatWriter
import faulthandler, itertools, signal
faulthandler.register(signal.SIGUSR2, all_threads=True)
heart = HeartbeatWriter.from_environment(os.environ, rank, answers=True)

def fall_asleep():
    time.sleep(1000)

for step in itertools.count(1):
    heart.step(step)
    if (rank, step, attempt) == (1, 3, "0"):
        fall_asleep()
""",
)


class Place:
    """A folder with the program, the supervisors that run it there, and what they leave."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = self._free_pair()
        self.started = []
        (folder / "my_train.py").write_text(PROGRAM)

    @staticmethod
    def _free_pair() -> int:
        """A port that is free together with the next one."""
        while not port_is_free((port := free_port()) + 1):
            pass
        return port

    def start(self, *args: object, env: dict[str, str] | None = None) -> subprocess.Popen:
        words = [sys.executable, "-m", "dsrun", "launch", *map(str, args), "--", "my_train.py"]
        output = (self.folder / f"output-{len(self.started)}").open("wb")
        environ = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
        with output:
            child = HEAVY.popen(
                words, cwd=self.folder, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        self.started.append(child)
        return child

    def node(self, rank: int, *more: object) -> subprocess.Popen:
        where = ["--master-addr", "127.0.0.1", "--master-port", self.port, "--output", "run"]
        return self.start("--nodes", 2, "--node-rank", rank, "--nproc", 1, *where, *more)

    def rank(self, rank: int, *, attempt: int) -> int:
        """The process id of a rank, once it is at work."""
        file = self.folder / f"rank-{rank}-attempt-{attempt}"
        self.until(lambda: file.exists() and file.read_text())
        return int(file.read_text().split()[0])

    def until(self, condition) -> None:
        end = time.monotonic() + 300
        while not condition():
            said = "".join(file.read_text(errors="replace") for file in sorted(self.folder.glob("output-*")))
            assert time.monotonic() < end, said
            time.sleep(0.05)

    def end(self) -> None:
        (self.folder / "end").touch()

    def said(self, number: int) -> str:
        return (self.folder / f"output-{number}").read_text(errors="replace")

    def code(self, child: subprocess.Popen) -> int:
        self.until(lambda: child.poll() is not None)
        return child.returncode

    def left(self) -> list[int]:
        """Processes that are at work in the folder."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with suppress(OSError):  # it has ended meanwhile
                    if (entry / "cwd").readlink() == self.folder:
                        found.append(int(entry.name))
        return found

    def events(self, kind: str) -> list[dict]:
        return [row for row in read_records(self.folder / "run" / "events.jsonl") if row["kind"] == kind]


@pytest.fixture
def place(tmp_path):
    found = Place(tmp_path)
    yield found
    for child in found.started:
        child.kill()
        child.wait()
    found.until(lambda: not found.left())


def test_killed_rank_on_one_node_restarts_all_nodes(place):
    children = [place.node(1), place.node(0)]  # the first node comes later
    os.kill(place.rank(1, attempt=0), signal.SIGKILL)
    ranks = [place.rank(rank, attempt=1) for rank in (0, 1)]
    assert len(set(ranks)) == 2
    place.end()
    assert [place.code(child) for child in children] == [0, 0]
    assert not place.left()
    [failure] = place.events("failure")
    assert (failure["cause"], failure["rank"]) == ("rank_killed", 1)
    # By hand and without a secret, anyone could have been node 1.
    assert re.search(r"whoever reaches that port can join .*\n +export DSRUN_SECRET=[0-9a-f]{32}\n", place.said(1))


def test_hang_is_explained_by_the_ranks_of_all_nodes(place):
    """Each node collects where its own ranks stand; node 0 puts it together, and blames the rank of the other node."""
    (place.folder / "my_train.py").write_text(HANGING)
    children = [place.node(rank, "--hang-timeout", 8) for rank in (0, 1)]
    for rank in (0, 1):
        place.rank(rank, attempt=1)
    place.end()
    assert [place.code(child) for child in children] == [0, 0]
    [failure] = place.events("failure")
    assert (failure["cause"], failure["rank"]) == ("rank_hung", 1)
    assert "rank 0 in all_reduce; rank 1 in time.sleep at fall_asleep (" in failure["message"]
    evidence = place.folder / "run" / "logs" / "evidence-attempt-0"
    assert (evidence / "summary.txt").read_text().startswith("rank 0: all_reduce\nrank 1: time.sleep at fall_asleep (")
    assert {"rank-0.stacks.txt", "rank-1.stacks.txt"} < {each.name for each in evidence.iterdir()}
    assert [each.node for each in read_node_status(place.folder / "run")] == [0, 1]


@pytest.mark.exhaustive
def test_lost_node_rejoins_rendezvous(place):
    """A node that is lost is waited for and takes part again."""
    lost, first = place.node(1), place.node(0)
    place.rank(0, attempt=0)
    rank = place.rank(1, attempt=0)
    lost.kill()
    # Nothing of it outlives its supervisor.
    place.until(lambda: not Path(f"/proc/{rank}").exists())
    again = place.node(1)
    for number in (0, 1):
        place.rank(number, attempt=1)
    place.end()
    assert [place.code(child) for child in (first, again)] == [0, 0]
    assert [failure["cause"] for failure in place.events("failure")] == ["node_lost"]


@pytest.mark.exhaustive
def test_lost_first_node_ends_other_nodes(place):
    """Without the first node, which coordinates, the others end."""
    other, first = place.node(1), place.node(0)
    place.rank(0, attempt=0)
    place.rank(1, attempt=0)
    first.kill()
    assert place.code(other) == 1
    assert "the first node (127.0.0.1) is lost" in place.said(0)
    place.until(lambda: not place.left())


def test_signal_to_one_node_stops_all_nodes_for_resume(place):
    """A signal to one node ends all of them with the exit code that allows a later resume."""
    children = [place.node(1), place.node(0)]
    place.rank(0, attempt=0)
    place.rank(1, attempt=0)
    children[0].terminate()
    assert [place.code(child) for child in children] == [75, 75]
    assert not place.left()


@pytest.fixture
def fleet(place):
    """Two machines over an ssh that is none, from one `dsrun launch`."""
    (place.folder / "hosts").write_text("alpha slots=1\nbeta slots=1\n")
    path = f"{ROOT / 'tests' / 'fakes'}:{os.environ['PATH']}"
    where = ["--master-addr", "127.0.0.1", "--master-port", place.port]
    return place.start("--hostfile", "hosts", *where, "--output", "run", env={"PATH": path, "HF_TOKEN": "secret"})


@pytest.mark.exhaustive
def test_ssh_launch_forwards_environment_and_signals(place, fleet):
    """Over ssh, environment variables and signals reach all machines."""
    ranks = [place.rank(number, attempt=0) for number in (0, 1)]
    environs = [Path(f"/proc/{rank}/environ").read_bytes() for rank in ranks]
    assert {re.search(rb"FAKE_HOST=(\w+)", environ)[1] for environ in environs} == {b"alpha", b"beta"}
    # A login shell's environment, and what was passed on.
    assert all(b"HF_TOKEN=secret" in environ for environ in environs)
    fleet.terminate()
    assert place.code(fleet) == 75
    place.until(lambda: not place.left())


@pytest.mark.exhaustive
def test_ssh_launch_killed_leaves_no_remote_processes(place, fleet):
    """When the local launcher is killed, nothing is left on any machine."""
    for number in (0, 1):
        place.rank(number, attempt=0)
    fleet.kill()
    place.until(lambda: not place.left())
