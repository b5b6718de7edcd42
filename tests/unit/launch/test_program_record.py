"""What the supervisor records of a program of the user's own, from its output."""

from __future__ import annotations

import errno
import math
import os
import time
from pathlib import Path

import pytest

from dsrun.diagnosis.run_diagnosis import of_run
from dsrun.launch import program_record
from dsrun.launch.context import LocalWorkers, RunOutcome, TrainingJob
from dsrun.launch.program_record import ProgramFigures, ProgramRecord
from dsrun.monitoring.run_status import status_of
from dsrun.monitoring.trainer_logs.status import LogReader
from dsrun.runs.folder import RunFolder
from dsrun.runs.heartbeat import StopRequest
from dsrun.runs.reader import read_history
from dsrun.runs.records import EventLog, read_records, seconds_of
from dsrun.runs.tail import FileTail, progress
from dsrun.system.build_locks import LONG_S


class Program:
    """A run folder, and a program whose output is written by hand."""

    def __init__(self, path: Path, **more: object) -> None:
        self.run = RunFolder(path)
        path.mkdir(exist_ok=True)
        self.log = path / "launcher.log"
        self.log.touch()
        self.noted: list[str] = []
        self.asked: StopRequest | None = None
        options = {"external": True, "name": "ddp", **more}
        self.record = ProgramRecord(
            TrainingJob(
                topology=LocalWorkers(2, "cpu", 2), run=path, program=["x.py"], env={"HOME": str(path)}, **options
            ),
            self.log,
            self.noted.append,
            lambda: self.asked,
        )

    def write(self, text: str) -> None:
        with self.log.open("a") as file:
            file.write(text)
        self.record.look()

    @property
    def events(self) -> list[tuple[object, ...]]:
        return [(each["kind"], each.get("step"), each.get("attempt")) for each in read_records(self.run.events)]

    @property
    def losses(self) -> list[tuple[int, float]]:
        return read_history(self.run.path).series("loss")


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


def test_program_that_ends_well(program: Program) -> None:
    program.record.begin(0, {})
    program.write("loading\n")
    program.write("step 1/4 loss 2.5\nstep 2/4 loss 2.25 lr 0.1\nstep 3/4 lo")
    program.write("ss 2.0\nstep 4/4 loss 1.0\n{'eval_loss': 0.5}\n")
    program.record.end(RunOutcome(0), None)
    assert program.events == [("start", None, 0), ("training", 0, None), ("end", 4, None)]
    history = read_history(program.run.path)
    assert program.losses == [(1, 2.5), (2, 2.25), (3, 2.0), (4, 1.0)]
    assert (history.series("lr"), history.series("eval_loss")) == ([(2, 0.1)], [(4, 0.5)])
    status = status_of(history)
    assert (status.state, status.step, status.max_steps, status.model, status.world_size) == (
        "finished",
        4,
        4,
        "ddp",
        2,
    )


def test_restarted_program_makes_steps_again(program: Program) -> None:
    """Those of the attempt before that it makes again do not count, and its log is not read twice."""
    program.record.begin(0, {})
    program.write("step 10/40 loss 2.5\nstep 20/40 loss 2.25\nstep 30/40 loss 2.0\n")
    assert program.record.step == 30
    program.log.open("a").write("step 31/40 loss 2.0\n")
    program.record.begin(1, {})
    program.write("resumed\nstep 21/40 loss 2.5\n")
    assert program.events[2:] == [("start", None, 1), ("training", 20, None)]
    assert program.losses == [(10, 2.5), (20, 2.25), (21, 2.5)]


def test_figures_of_the_last_step_that_come_later(program: Program) -> None:
    """A line of their own belongs to the step before; nothing is written while nothing is new."""
    program.record.begin(0, {})
    program.write("step 1 loss 2.5\n")
    size = program.run.metrics.stat().st_size
    program.write("")
    assert program.run.metrics.stat().st_size == size
    program.write("step 1 loss 2.5 grad_norm 3.0\n")
    assert read_history(program.run.path).series("grad_norm") == [(1, 3.0)]
    assert program.losses == [(1, 2.5)]


def test_lines_without_a_step_are_counted_over_looks(program: Program) -> None:
    program.record.begin(0, {})
    for loss in (3.0, 2.0, 1.0):
        program.write(f"loss {loss}\n")
    assert program.losses == [(1, 3.0), (2, 2.0), (3, 1.0)]


@pytest.mark.parametrize(
    "line",
    [
        "Train Epoch: 2 [44800/60000 (75%)]\tLoss: 0.25\n",
        "Epoch 3/3 done, train_loss=0.25\n",
        "Epoch 0:  50%|#  | 10/20 [00:02<00:02, 5.0it/s, loss=0.25]\r\n",
        "loss 0.25\n",
    ],
)
def test_step_that_no_line_names_is_unknown_to_every_reader(program: Program, line: str) -> None:
    program.record.begin(0, {})
    program.write("loss 2.0\n" + line)
    program.record.end(RunOutcome(0), None)
    shown = LogReader(program.log)
    shown.read()
    status = status_of(read_history(program.run.path))
    assert (status.step, status.loss, status.step_s) == (None, 0.25, None)
    assert (shown.status().step, shown.status().loss, shown.status().step_s) == (None, 0.25, None)
    jobs = progress(program.run.metrics)
    assert jobs
    assert (jobs.step, jobs.loss) == (None, 0.25)
    assert program.events == [("start", None, 0), ("end", None, None)]


def test_loss_that_is_not_a_number_is_recorded_as_such(program: Program) -> None:
    program.record.begin(0, {})
    program.write("step 1 loss 2.5\nstep 2 loss nan\nstep 3 loss NaN\nstep 4 lr 0.1\n")
    size = program.run.metrics.stat().st_size
    program.write("")  # it hangs
    assert program.run.metrics.stat().st_size == size
    history = read_history(program.run.path)
    assert [each["step"] for each in history.steps if math.isnan(each["loss"])] == [2, 3]
    assert [each for each in program.events if each[0] == "nan"] == [("nan", 2, None)]
    assert (status_of(history).loss, status_of(history).loss_is_finite) == (None, False)


@pytest.mark.parametrize("line", ["{'loss': nan, 'epoch': 0.1}", "{'loss': 'nan', 'epoch': '0.1'}", "loss=nan"])
def test_nan_without_a_step_is_told_once(program: Program, line: str) -> None:
    program.record.begin(0, {})
    for _ in range(3):
        program.write(f"{line}\n")
    assert program.events[1:] == [("nan", None, None)]
    assert len(read_history(program.run.path).steps) == 3


def test_metrics_of_the_program_itself_are_left_alone(program: Program) -> None:
    """Those that are there before dsrun writes any, and those that replace dsrun's."""
    program.run.metrics.write_text('{"step": 7, "time": "?"}\n')
    program.record.begin(0, {})
    program.write("step 1 loss 2.5\n")
    assert program.run.metrics.read_text() == '{"step": 7, "time": "?"}\n'
    again = Program(program.run.path / "again")
    again.record.begin(0, {})
    again.write("step 1 loss 2.5\n")
    again.run.metrics.write_text("")
    again.record.begin(1, {})
    again.write("step 1 loss 2.5\n")
    again.write("step 2 loss 2.5\n")
    assert again.run.metrics.read_text() == ""
    assert [len(each.noted) for each in (program, again)] == [1, 1]


def test_metrics_of_a_start_before_are_added_to(program: Program) -> None:
    program.record.begin(0, {})
    program.write("step 1 loss 2.5\n")
    program = Program(program.run.path)
    program.record.begin(0, {})
    program.write("step 2 loss 2.0\n")
    assert (program.losses, program.noted) == ([(1, 2.5), (2, 2.0)], [])


def test_supervisor_does_not_wait_for_a_dead_file_server(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_record, "LOCK_S", 0.01)
    with program.record._lock:
        program.record.begin(0, {})
        program.record.over()
        program.record.end(RunOutcome(0), None)
    assert program.events == []
    assert [str(program.run.path) in note for note in program.noted] == [True], "once"


def test_end_that_a_full_disk_does_not_take_is_told(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    program.record.begin(0, {})
    monkeypatch.setattr(program_record.EventLog, "write", full)
    program.record.end(RunOutcome(0), None)
    assert [os.strerror(errno.ENOSPC) in note for note in program.noted] == [True]


def test_rate_that_a_bar_tells(program: Program) -> None:
    program.record.begin(0, {})
    program.write("100%|##| 20/20 [00:10<00:00, 2.0it/s]\n")
    status = status_of(read_history(program.run.path))
    assert (status.step, status.max_steps, status.step_s) == (19, 20, 0.5)  # 20 with the end


def test_steps_of_one_look_are_spread_over_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How fast a program is follows from the times of its steps, and its lines seldom bear one."""
    log, clock = tmp_path / "log", iter([100.0, 104.0])
    monkeypatch.setattr("dsrun.launch.program_record.time.time", lambda: next(clock))
    figures = ProgramFigures(FileTail(log))
    log.write_text("".join(f"step {step} loss 1.0\n" for step in range(1, 5)))
    assert [seconds_of(record) for record in figures.read()] == [101.0, 102.0, 103.0, 104.0]


def test_progress_is_told_now_and_then(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    program.record.begin(0, {})
    for step in (1, 2):
        program.write(f"step {step} loss 1.0\n")
    assert program.events[1:] == [("training", 0, None)]
    monkeypatch.setattr(program_record, "PROGRESS_S", 0.0)
    program.write("step 3 loss 1.0\n")
    assert program.events[2:] == [("progress", 3, None)]


def test_output_of_an_attempt_that_has_failed_is_no_sign_of_life(program: Program) -> None:
    """What is still read after the failure was told: its figures count, and nothing goes on."""
    program.record.begin(0, {})
    program.record.over()
    program.write("step 3/9 loss 1.0\n")
    program.record.end(RunOutcome(1), None)
    assert program.events == [("start", None, 0)]
    assert program.losses == [(3, 1.0)]


def test_script_that_keeps_its_own_record_is_left_alone(program: Program) -> None:
    """dsrun.train.Trainer writes run.json, metrics and its end itself."""
    program.record.begin(0, {})
    program.run.run_json.write_text("{}")
    program.write("step 1/4 loss 2.5\n")
    assert not program.run.metrics.exists()
    program.run.events.open("a").write('{"kind": "end", "step": 4, "exit_code": 0}\n')
    program.record.end(RunOutcome(0), None)
    assert program.events == [("start", None, 0), ("end", 4, None)]


@pytest.mark.parametrize(("end", "cause"), [(None, "run_killed"), ("SIGTERM", "interrupted"), ("end", "none")])
def test_earlier_failure_is_not_the_cause_of_the_end(program: Program, end: str | None, cause: str) -> None:
    """The log of all attempts still shows it."""
    logs = program.run.logs
    logs.mkdir()
    program.record.begin(0, {})
    (logs / "1-launcher.log").write_text("RuntimeError: CUDA error: an illegal memory access was encountered\n")
    with EventLog(program.run.events) as log:
        log.write("failure", cause="unknown", exit_code=7)
        log.write("restart", attempt=1)
    program.record.begin(1, {})
    program.write("step 3/4 loss 2.5\nstep 4/4 loss 2.5\n")
    if end:
        program.record.end(RunOutcome(0 if end == "end" else 75), end if end != "end" else None)
    assert of_run(program.run.path).cause.code == cause


@pytest.mark.parametrize(
    ("more", "code", "signal", "events"),
    [
        ({}, 0, None, [("start", None, 0), ("end", None, None)]),
        ({}, 75, "SIGTERM", [("start", None, 0), ("signal", None, None)]),
        ({}, 1, None, [("start", None, 0)]),  # the failure is an event already
        ({"external": False}, 0, None, []),
        ({"external": False}, 130, "SIGINT", [("signal", None, None)]),
        ({"nnodes": 2, "node_rank": 1}, 0, None, []),
        ({"nnodes": 2, "node_rank": 1}, 130, "SIGINT", []),
    ],
)
def test_who_tells_the_end(
    tmp_path: Path, more: dict[str, object], code: int, signal: str | None, events: list[tuple[object, ...]]
) -> None:
    program = Program(tmp_path, **more)
    program.record.begin(0, {})
    program.record.end(RunOutcome(code), signal)
    assert program.events == events


def test_signal_after_a_failure_is_no_stop(program: Program) -> None:
    """srun ends what is left of a job with SIGTERM, when a task has failed."""
    program.record.begin(0, {})
    with EventLog(program.run.events) as log:
        log.write("failure", cause="rank_killed", exit_code=1)
    program.record.end(RunOutcome(1), "SIGTERM")
    assert [kind for kind, *_ in program.events] == ["start", "failure"]


@pytest.mark.parametrize(
    ("last", "code", "told", "state"),
    [
        (2, None, [], "stopped"),  # killed when the time to save is over
        (2, 75, [], "stopped"),
        (2, 0, [], "stopped"),  # it has saved
        (4, 0, [("end", 4, None)], "finished"),
    ],
)
def test_program_that_was_asked_to_stop(
    program: Program, last: int, code: int | None, told: list[tuple[object, ...]], state: str
) -> None:
    """By a signal of its own: told at once, as it may be killed; it may also come to its end all the same."""
    program.record.begin(0, {})
    program.write("step 1/4 loss 2.5\n")
    program.asked = StopRequest("SIGTERM")
    for step in range(2, last + 1):
        program.write(f"step {step}/4 loss 2.5\n")
    assert program.events == [("start", None, 0), ("training", 0, None), ("signal", 2, None)]
    if code is not None:
        program.record.end(RunOutcome(code), "SIGTERM")
    assert program.events[3:] == told
    assert status_of(read_history(program.run.path)).state == state


def test_long_output_is_read_at_its_end(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much a program writes between two looks, they take no longer."""
    monkeypatch.setattr(program_record, "MOST_BYTES", 1 << 20)
    program = Program(program.run.path)
    program.record.begin(0, {})
    program.write("step 1 loss 9.0\n" * 10)
    program.write(f"step 2 loss 8.0\n{'x' * program_record.MOST_BYTES}\nstep 3 loss 7.0\n")
    assert program.losses == [(1, 9.0), (3, 7.0)]
    assert len(program.noted) == 1


def test_what_one_look_leaves_the_next_one_reads(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_record, "_PIECE", 100)
    monkeypatch.setattr(program_record, "READ_S", 0.0)
    program = Program(program.run.path)
    program.record.begin(0, {})
    program.write("".join(f"step {step} loss {step}.5\n" for step in range(5, 25)))
    assert (len(program.losses), program.events[1:]) == (6, [("training", 4, None)])
    monkeypatch.setattr(program_record, "READ_S", 60.0)
    program.write("")
    assert (program.losses, program.noted) == ([(step, step + 0.5) for step in range(5, 25)], [])
    monkeypatch.setattr(program_record, "READ_S", 0.0)
    program.log.open("a").write("step 25 loss 1.0\n" * 20)
    program.record.begin(1, {})
    program.write("step 3 loss 9.0\n")
    assert program.losses == [(3, 9.0)]
    assert len(program.noted) == 1


def test_lock_of_a_killed_build_is_removed(program: Program) -> None:
    """Before the ranks would wait for it, and after those that have compiled are ended; one that is held for long is
    named, once."""
    folder = program.run.path / ".cache" / "torch_extensions" / "py311_cpu"
    left, held = folder / "cpu_adam" / "lock", folder / "fused_adam" / "lock"
    for lock in (left, held):
        lock.parent.mkdir(parents=True)
    with held.open("w"):
        os.utime(held, (0, time.time() - 2 * LONG_S))
        for step in (lambda: program.record.begin(0, {}), lambda: program.record.end(RunOutcome(1), None)):
            left.touch()
            step()
            assert (left.exists(), held.exists()) == (False, True)
    assert [line.partition(" ")[0] for line in program.noted] == [str(left), str(held), str(left)]
