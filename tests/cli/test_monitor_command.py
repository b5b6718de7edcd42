"""`dsrun monitor` as a user calls it: on a terminal, through a pipe, once, as JSON."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsrun.runs.folder import RunFolder
from tests.slurm_recordings import recorded, stand_in, stand_in_cluster

LOGS = Path(__file__).parents[1] / "data" / "trainer_logs"
TIME = "2026-11-25T10:00:00.000Z"
LIMIT_S = 120.0


def log_steps(run: Path, *steps: int) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps({"step": step, "loss": 1 / step, "time": TIME}) + "\n" for step in steps)


def log_event(run: Path, kind: str, **more: object) -> None:
    with (run / "events.jsonl").open("a") as file:
        file.write(json.dumps({"kind": kind, "time": TIME, **more}) + "\n")


@pytest.fixture
def run(here):
    """A run folder of 10 of 100 steps that nobody holds."""
    folder = here / "runs" / "t5"
    folder.mkdir(parents=True)
    log_event(folder, "start", world_size=2)
    log_event(folder, "training", step=0, max_steps=100)
    log_steps(folder, 10)
    (folder / "run.json").write_text('{"model": "t5-small", "world_size": 2}')
    return folder


class Screen:
    """`dsrun monitor` on a terminal of its own."""

    def __init__(self, *args: str, cwd: Path, env: dict[str, str]) -> None:
        self.master, slave = pty.openpty()
        self.settings = termios.tcgetattr(slave)
        self.resize(100, 30)
        self.seen = ""
        self.child = subprocess.Popen(
            [sys.executable, "-m", "dsrun", "monitor", "--interval", "0.2", *args],
            cwd=cwd, env={**{k: v for k, v in env.items() if k != "COLUMNS"}, "TERM": "xterm-256color"},
            preexec_fn=lambda: os.login_tty(slave),  # noqa: PLW1509
        )  # fmt: skip
        self.slave = slave

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def wait_for(self, text: str) -> str:
        """Read until `text` appears; what was read since the last call."""
        seen = ""
        while text not in seen:
            ready, _, _ = select.select([self.master], [], [], LIMIT_S)
            assert ready, f"{text!r} does not appear in {seen[-3000:]!r}"
            seen += os.read(self.master, 65536).decode("utf-8", "replace")
        return seen

    def press(self, key: str) -> None:
        os.write(self.master, key.encode())

    def end(self) -> tuple[int, str]:
        """The exit code, and what was written until then."""
        seen = ""
        while self.child.poll() is None or select.select([self.master], [], [], 0)[0]:
            if select.select([self.master], [], [], 0.05)[0]:
                seen += os.read(self.master, 65536).decode("utf-8", "replace")
        return self.child.returncode, seen


@pytest.fixture
def screen(here, environ) -> Iterator:
    opened: list[Screen] = []

    def start(*args: str) -> Screen:
        opened.append(Screen(*args, cwd=here, env=environ))
        return opened[-1]

    yield start
    for each in opened:
        each.child.kill()
        each.child.wait()
        os.close(each.master)
        os.close(each.slave)


def test_live_view_follows_a_growing_run_until_q(screen, run):
    """It draws what is added, and leaves the terminal as it was."""
    with RunFolder(run).acquire():
        shown = screen("runs/t5")
        assert "\x1b[?1049h" in shown.wait_for("step 10")
        log_steps(run, 20)
        shown.wait_for("step 20")
        shown.press("q")
        code, rest = shown.end()
    assert code == 0
    left, _, after = rest.partition("\x1b[?1049l")
    assert left != rest
    assert "step 20" in after  # the last state stays on the terminal
    assert termios.tcgetattr(shown.slave) == shown.settings


def test_live_view_is_drawn_anew_at_a_key_or_resize(screen, run):
    with RunFolder(run).acquire():
        shown = screen("runs/t5", "--interval", "3600")
        shown.wait_for("q quits")
        shown.resize(60, 20)
        shown.wait_for("q quits")
        log_steps(run, 20)
        shown.press(" ")
        shown.wait_for("step 20")


def test_live_view_ends_with_the_run(screen, run):
    with RunFolder(run).acquire():
        shown = screen()  # the newest run below ./runs
        shown.wait_for("step 10")
    log_event(run, "end", exit_code=0, step=100)
    code, rest = shown.end()
    assert code == 0
    assert "finished" in rest


def test_interrupt_exits_130(screen, run):
    with RunFolder(run).acquire():
        shown = screen("runs/t5")
        shown.wait_for("step 10")
        shown.press("\x03")
        code, rest = shown.end()
    assert code == 130
    assert "error: interrupted" in rest
    assert termios.tcgetattr(shown.slave) == shown.settings


def test_pipe_gets_a_line_per_change_until_the_end(here, environ, run):
    lock = RunFolder(run).acquire()
    command = [sys.executable, "-m", "dsrun", "monitor", "runs/t5", "--interval", "0.2"]
    with subprocess.Popen(command, cwd=here, env=environ, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline()]
        log_event(run, "checkpoint_end", step=10, seconds=2.0)
        lines.append(child.stdout.readline())
        log_event(run, "end", exit_code=0, step=100)
        lock.release()
        rest = child.stdout.read().splitlines()
    assert [line.split(None, 1)[1] for line in lines] == [
        "training  step 10/100 (10.0%)  loss 0.1\n",
        "checkpoint of step 10 saved, training waited 2 s\n",
    ]
    assert child.returncode == 0
    assert rest[-1].split(None, 1)[1] == "finished  step 100/100 (100.0%)  loss 0.1"


def test_once_prints_the_state_of_an_ended_run(dsrun, run):
    done = dsrun("monitor", "runs/t5", "--once")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].split()[:2] == ["killed", "runs/t5"]
    assert "\x1b" not in done.stdout
    assert all(line == line.rstrip() for line in lines)


def test_monitor_json(dsrun, run):
    done = dsrun("monitor", "runs/t5", "--format", "json")
    found = json.loads(done.stdout)
    assert (found["version"], found["kind"], found["status"]["step"]) == (1, "run", 10)
    assert (found["status"]["state"], found["status"]["is_over"]) == ("killed", True)
    assert [event["kind"] for event in found["events"]] == ["start", "training"]


def test_log_of_another_trainer(dsrun, here):
    (here / "train.log").write_bytes((LOGS / "huggingface-5.txt").read_bytes())
    text = dsrun("monitor", "--log", "train.log", "--once").stdout
    assert "finished" in text.splitlines()[0]
    assert "step 60 of 60" in text
    found = json.loads(dsrun("monitor", "--log", "train.log", "--format", "json").stdout)
    assert (found["kind"], found["status"]["loss"], found["status"]["max_steps"]) == ("log", 4.476, 60)


def test_log_on_standard_input(here, environ):
    command = [sys.executable, "-m", "dsrun", "monitor", "--log", "-"]
    text = (LOGS / "torchtitan.txt").read_bytes()
    done = subprocess.run(command, cwd=here, env=environ, input=text, capture_output=True, check=True)
    (line,) = done.stdout.decode().splitlines()
    assert line.split(None, 1)[1] == "finished  step 20/1,000 (2.0%)  loss 7.028  grad norm 0.4  tokens/s 7,100"
    with (LOGS / "torchtitan.txt").open("rb") as file:
        done = subprocess.run(command, cwd=here, env=environ, stdin=file, capture_output=True, check=True)
    assert b"step 20/1,000" in done.stdout


def test_job_in_the_queue_then_its_run(dsrun, programs, here):
    """Recorded answers: a job that waits for ever, and one that runs with its run folder."""
    stand_in_cluster(programs)
    waiting = next(row for row in recorded("squeue").split("\x1e\n") if row.startswith("68\x1f")) + "\x1e\n"
    running = next(row for row in recorded("squeue").split("\x1e\n") if row.startswith("62\x1f")) + "\x1e\n"
    stand_in(
        programs, "squeue", ("--jobs=68", waiting), ("--jobs=62", running.replace("/home/ada/jobs", str(here))),
        ("--jobs", "", "slurm_load_jobs error: Invalid job id specified\n", 1),
    )  # fmt: skip
    lines = dsrun("monitor", "--job", "68", "--once").stdout.splitlines()
    assert lines[1:4] == [
        "job 68 waits  PENDING",
        "DependencyNeverSatisfied: the job it depends on did not end as it should have:",
        "it will never start, cancel it",
    ]
    folder = here / "runs" / "t5 large-62"
    folder.mkdir(parents=True)
    log_event(folder, "training", step=0, max_steps=100)
    log_steps(folder, 40)
    text = dsrun("monitor", "--job", "62", "--once").stdout
    assert "job 62 t5 large  RUNNING on node2, 0:03 of 1:00:00" in text
    assert "step 40 of 100" in text
    found = json.loads(dsrun("monitor", "--job", "68", "--format", "json").stdout)
    assert (found["kind"], found["job"]["state"], found["status"]["state"]) == ("job", "PENDING", "starting")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["none"], "none does not exist (give the --output of a dsrun train or launch)"),
        (["."], ". contains 1 run (name one, such as the newest, runs/t5)"),
        (["file"], "file is a file (dsrun monitor --log file)"),
        (["empty"], "empty contains no run (give the --output of a dsrun train or launch)"),
        (["--log", "none"], "none cannot be read: No such file or directory (name a log that you may read)"),
        (["--log", "empty"], "empty cannot be read: Is a directory (name a log that you may read)"),
        (["runs/t5", "--log", "file"], "RUN, --log and --job exclude each other (give one of them)"),
        (["--job", "x1"], "'x1' is not a job ID (write it as 1234, or 1234_5 for a task of an array)"),
    ],
    ids=" ".join,
)
def test_nothing_to_watch_is_one_line(dsrun, here, run, args, message):
    (here / "file").touch()
    (here / "empty").mkdir()
    for more in ((), ("--once",)):
        done = dsrun("monitor", *args, *more)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {message}\n")


def test_a_folder_of_broken_files_is_shown_as_far_as_it_goes(dsrun, run):
    for name in ("run.json", "metrics.jsonl", "events.jsonl"):
        with (run / name).open("ab") as file:
            file.write(b'\xff\xfe{"step": [[[\n{"step": "x", "loss": {}}\nnull\n')
    (run / "status").mkdir()
    (run / "status" / "node-0.json").write_text('{"ranks": 7, "gpus": [{}]}')
    done = dsrun("monitor", "runs/t5", "--once")
    assert (done.returncode, done.stderr) == (0, "")
    assert "step 10 of 100" in done.stdout
