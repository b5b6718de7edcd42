"""The supervisor of a script that is not dsrun's: every fault is survived, named and recorded, and nobody is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from dsrun.launch.supervisor.reaper import members
from dsrun.runs.records import read_records
from tests.forkserver.client import HEAVY
from tests.frozen import frozen
from tests.processes import GONE_S, below, left_of, noticed_after

pytestmark = pytest.mark.train

STEPS = Path(__file__).with_name("steps.py")
ROOT = Path(__file__).parents[2]
FOR_EVER = "100000"
HANDSHAKE_TIMEOUT_S = 120
SOON_S = 1
"""In which a dead rank is noticed, as docs/launch.md says."""


class Supervised:
    """A supervisor of two ranks of steps.py in a process of its own."""

    def __init__(self, folder: Path, steps: str, *words: str, **spec: object) -> None:
        self.folder = folder
        self.run = folder / "run"
        file = folder / "spec.json"
        program = [str(STEPS), str(folder), steps, *words]
        file.write_text(json.dumps({"ranks": 2, "run": str(self.run), "program": program, **spec}))
        self.process = HEAVY.popen(
            [sys.executable, "-m", "tests.integration.supervised", str(file)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def notes(self, what: str, rank: int | None = None, attempt: int | None = None) -> list[dict]:
        """What the ranks have noted so far."""
        files = self.folder.glob(f"notes-{'*' if rank is None else rank}.jsonl")
        return [
            note
            for file in sorted(files)
            for note in read_records(file)
            if note["what"] == what and attempt in (None, note["attempt"])
        ]

    def wait_for(self, what: str, count: int = 1, **which: int) -> list[dict]:
        deadline = time.monotonic() + HANDSHAKE_TIMEOUT_S
        while len(found := self.notes(what, **which)) < count:
            assert time.monotonic() < deadline, self.end(signal.SIGKILL)
            assert self.process.poll() is None, self.end(signal.SIGKILL)
            time.sleep(0.02)
        return found

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + HANDSHAKE_TIMEOUT_S
        while not condition():
            assert time.monotonic() < deadline, self.end(signal.SIGKILL)
            time.sleep(0.02)

    def guards(self) -> set[int]:
        return {each.pid for each in below(self.process.pid, "-I", "-S")}

    def end(self, *signals: int) -> tuple[int, dict | None, str]:
        """Send signals, wait; exit code, outcome, and what was said on the way."""
        for signum in signals:
            self.process.send_signal(signum)
        out, err = self.process.communicate(timeout=HANDSHAKE_TIMEOUT_S)
        return self.process.returncode, json.loads(out) if out.strip() else None, err

    def events(self, kind: str) -> list[dict]:
        return [event for event in read_records(self.run / "events.jsonl") if event["kind"] == kind]


@pytest.fixture
def supervised(tmp_path):
    """Start one; whatever a test does to it, nothing of it is left."""
    started: list[Supervised] = []

    def start(*words: str, **spec: object) -> Supervised:
        started.append(Supervised(tmp_path, *words, **spec))
        return started[-1]

    yield start
    marks = [mark for each in started for mark in marks_of(each)]
    for each in started:
        each.process.kill()
        each.process.wait()
    assert marks or not started
    deadline = time.monotonic() + GONE_S
    while any(members(mark) for mark in marks) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(members(mark) for mark in marks)


def marks_of(run: Supervised) -> set[str]:
    """The mark of the family, as a rank found it in its environment."""
    return {note["mark"] for note in run.notes("begin")}


def test_restart_after_killed_rank_hung_rank_and_killed_agent(supervised, tmp_path):
    """A rank kills itself, one stops, the agent is killed, and at last the agent is told to end."""
    words = ["a b", "$local_rank", "$$HOME", "${x}", "--cost=5$", "'\"`"]
    run = supervised(FOR_EVER, "0:1:5:kill", "1:0:5:stop", *words, hang_timeout=10, max_restarts=4)
    run.wait_for("step", 20, rank=1, attempt=2)
    (third,) = run.wait_for("begin", rank=0, attempt=2)
    os.kill(third["parent"], signal.SIGKILL)
    for rank in (0, 1):
        run.wait_for("step", 20, rank=rank, attempt=3)
    (fourth,) = run.notes("begin", rank=0, attempt=3)
    assert fourth["argv"][-len(words) :] == words
    os.kill(fourth["parent"], signal.SIGUSR1)
    code, outcome, said = run.end()
    assert code == outcome["exit_code"] == 75
    assert "stopped by SIGUSR1" in outcome["message"]
    assert {note["signal"] for note in run.notes("told", attempt=3)} == {signal.SIGUSR1}

    killed, stopped, orphaned = run.events("failure")
    assert (killed["cause"], killed["rank"], killed["exit_code"], killed["attempt"]) == (
        "rank_killed",
        1,
        -9,
        0,
    )
    assert killed["step"] == 5
    assert noticed_after(killed) < SOON_S
    assert (stopped["cause"], stopped["rank"], stopped["attempt"]) == ("rank_hung", 0, 1)
    assert "stopped" in stopped["message"]
    assert (orphaned["cause"], orphaned["attempt"]) == ("agent_killed", 2)
    assert "rank" not in orphaned
    assert noticed_after(orphaned) < SOON_S
    assert [event["attempt"] for event in run.events("restart")] == [1, 2, 3]
    first, *_ = said.splitlines()
    assert first == "rank 1 was killed (SIGKILL) after step 5: again in 1 s (restart 1 of at most 4)"

    evidence = run.run / "logs" / "evidence-attempt-1"
    assert "State:\tT (stopped)" in (evidence / "rank-0.proc.txt").read_text()
    # Also of the one that was stopped.
    assert all("main" in (evidence / f"rank-{rank}.stacks.txt").read_text() for rank in (0, 1))
    assert not list(Path(third["scratch"]).parent.glob(Path(third["scratch"]).name))


@pytest.mark.exhaustive
def test_stopped_zygote_is_replaced(supervised):
    """What has forked the agent of one attempt has to fork that of the next one."""
    run = supervised(FOR_EVER)
    (first,) = run.wait_for("begin", rank=0)
    os.kill(psutil.Process(first["parent"]).ppid(), signal.SIGSTOP)
    os.kill(first["pid"], signal.SIGKILL)
    run.wait_for("step", 3, rank=1, attempt=1)
    code, _, _ = run.end(signal.SIGTERM)
    assert code == 75


@pytest.mark.parametrize("who", ["zygote", "agent"])
def test_stopped_process_does_not_keep_finished_run(supervised, who):
    """The ranks end well, and their agent, or what has forked it, cannot say so."""
    run = supervised("300")
    (first,) = run.wait_for("begin", rank=0)
    os.kill(first["parent"] if who == "agent" else psutil.Process(first["parent"]).ppid(), signal.SIGSTOP)
    code, outcome, said = run.end()
    assert code == outcome["exit_code"] == 0
    assert run.events("waiting")
    assert "stopped" in said
    assert not run.events("failure")
    assert not run.events("restart")


@pytest.mark.exhaustive
def test_rank_that_cannot_be_killed_ends_run(supervised):
    """It is named with what it waits for, after the failure is on record, and no attempt starts beside it."""
    run = supervised(FOR_EVER, hang_timeout=10)
    run.wait_for("step", 3, rank=0)
    (frozen_rank,) = run.wait_for("begin", rank=1)
    with frozen(frozen_rank["pid"]):
        code, outcome, said = run.end()
    assert code == outcome["exit_code"] == 1
    (failing,), (waiting,), (failure,) = (run.events(kind) for kind in ("failing", "waiting", "failure"))
    assert (failing["cause"], failing["rank"]) == ("rank_hung", 1)
    assert failure["cause"] == "process_unkillable"
    named = f"rank 1 (process {frozen_rank['pid']})"
    assert named in waiting["message"]
    assert named in failure["message"]
    assert named in said
    assert not run.events("restart")


def test_stop_signal_does_not_wait_for_stopped_agent(supervised):
    """A supervisor that is told to stop does not wait for an agent that SIGSTOP has stopped."""
    run = supervised(FOR_EVER)
    (begin,) = run.wait_for("begin", rank=0)
    run.wait_for("step", 3, rank=1)
    os.kill(begin["parent"], signal.SIGSTOP)
    code, outcome, _ = run.end(signal.SIGTERM)
    assert code == outcome["exit_code"] == 75
    assert len(run.notes("told")) == 2


@pytest.mark.exhaustive
def test_blocked_stderr_does_not_delay_restart(supervised):
    """As after Ctrl-S: the note on the restart cannot be written, for the pipe is full."""
    run = supervised(FOR_EVER)
    (begin,) = run.wait_for("begin", rank=0)
    fd = os.open(f"/proc/{run.process.pid}/fd/2", os.O_WRONLY | os.O_NONBLOCK)
    with os.fdopen(fd, "wb", buffering=0) as stderr:
        while stderr.write(b"." * 4096):
            pass
    os.kill(begin["pid"], signal.SIGKILL)
    run.wait_for("step", 3, rank=1, attempt=1)
    code, _, said = run.end(signal.SIGTERM)
    assert code == 75
    assert "restart 1 of at most 3" in said


def test_second_stop_signal_forces_quit(supervised):
    """Told twice to stop, it ends at once."""
    run = supervised(FOR_EVER, "--deaf")
    (begin,) = run.wait_for("begin", rank=0)
    run.wait_for("step", 3, rank=0)
    run.process.send_signal(signal.SIGTERM)
    # Two that come while it is kept from the processor are one.
    run.until((Path(begin["scratch"]) / "stop").exists)
    code, outcome, _ = run.end(signal.SIGTERM)
    assert code == outcome["exit_code"] == 128 + signal.SIGTERM


def test_sigint_ends_run_without_restart(supervised):
    """One Ctrl-C ends the run without a restart."""
    run = supervised(FOR_EVER)
    run.wait_for("step", 3, rank=0)
    code, _, _ = run.end(signal.SIGINT)
    assert code == 130
    assert not run.events("restart")


def test_killed_supervisor_leaves_no_orphan_processes(supervised, tmp_path):
    """The orphan reaper, replaced when killed itself, ends all that a killed supervisor leaves, its files, too."""
    (temporary := tmp_path / "temporary").mkdir()
    run = supervised(FOR_EVER, "--deaf", env={"TMPDIR": str(temporary)})
    scratch, _ = (Path(run.wait_for("begin", rank=rank)[0]["scratch"]) for rank in (0, 1))
    (first,) = run.guards()
    os.kill(first, signal.SIGKILL)
    run.until(lambda: run.guards() - {first})
    family = below(run.process.pid)
    assert len(family) >= 4  # guard, agent, two ranks
    run.process.kill()
    assert not left_of(family, GONE_S)
    assert not scratch.exists()
    assert not list(temporary.glob("torchelastic_*"))


def test_repeated_crash_ends_restarts(supervised):
    """The same crash twice ends the run, whatever restarts are left."""
    run = supervised(FOR_EVER, "*:1:4:fail", max_restarts=5)
    code, outcome, _ = run.end()
    assert code == 1
    assert "exit code 1" in outcome["message"]
    assert len(run.events("failure")) == 2
    assert "ValueError: no such thing" in Path(outcome["log"]).read_text()
