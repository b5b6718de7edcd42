"""Following a job: recorded states of a real one, one after the other."""

from __future__ import annotations

import re

import pytest

from dsrun.errors import ToolError, UsageError
from dsrun.runs.tail import LineTail
from dsrun.slurm.jobs import submit
from dsrun.slurm.jobs.status import JobStatus, from_history, read_jobs
from dsrun.slurm.jobs.submit import JobMonitor, added_lines, follow, interval
from dsrun.system import slurm
from dsrun.system.slurm import NoAnswerError
from tests.slurm_recordings import recorded, stand_in

DONE = recorded("job-failed")


def at(state, *, log=None, reason="None", code="0:0", restarts=0, text=DONE):
    """The recorded job in another state."""
    text = re.sub(r"JobState=\S+ Reason=\S+", f"JobState={state} Reason={reason}", text)
    text = re.sub(r"Restarts=\d+", f"Restarts={restarts}", text)
    text = re.sub(r"ExitCode=\S+", f"ExitCode={code}", text)
    return re.sub(r"StdOut=.*", f"StdOut={log or '/nowhere/x.log'}", text)


class Slurm:
    """Gives one answer after the other, the last one for ever; an error is raised. `pause` runs what is to happen."""

    def __init__(self, monkeypatch, *answers, happens=()):
        self.answers, self.happens, self.slept = list(answers), list(happens), 0.0
        monkeypatch.setattr(slurm, "job", self.job)
        self.told: list[str] = []
        self.shown: list[str] = []

    def job(self, job_id):
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def pause(self, seconds):
        self.slept += seconds
        assert self.slept < 1000, f"does not end; told so far: {self.told}"
        if self.happens:
            self.happens.pop(0)()

    def follow(self, job_id="67"):
        return follow(job_id, notify=self.told.append, show=self.shown.append, pause=self.pause)


def test_follow_job_to_its_end(monkeypatch):
    fake = Slurm(monkeypatch, at("PENDING", reason="Priority"), at("RUNNING"), at("RUNNING"), at("COMPLETED"))
    assert fake.follow() == 0
    assert fake.told == [
        "job 67: PENDING (Priority)",
        "job 67: RUNNING on node3",
        "job 67: COMPLETED after 00:00:00",
    ]


@pytest.mark.parametrize(
    ("state", "code", "result"),
    [
        ("COMPLETED", "0:0", 0), ("FAILED", "3:0", 3), ("FAILED", "0:9", 137), ("CANCELLED", "0:15", 143),
        ("TIMEOUT", "0:0", 1), ("OUT_OF_MEMORY", "0:125", 253), ("CANCELLED", "0:0", 1), ("NODE_FAIL", "1:0", 1),
    ],
)  # fmt: skip
def test_follow_exit_code_is_job_result(monkeypatch, state, code, result):
    """The job's result becomes the exit code."""
    assert Slurm(monkeypatch, at(state, code=code)).follow() == result


def test_follow_continues_after_requeue(monkeypatch):
    """A requeue is not the end of the job."""
    fake = Slurm(
        monkeypatch,
        at("RUNNING"),
        at("COMPLETING"),
        at("PENDING", reason="BeginTime", restarts=1),
        at("RUNNING", restarts=1),
        at("COMPLETED", restarts=1),
    )
    assert fake.follow() == 0
    assert fake.told[2] == "job 67: PENDING (BeginTime) requeued 1 time so far"
    assert fake.told[3] == "job 67: RUNNING on node3"


@pytest.mark.parametrize("state", ["NODE_FAIL", "PREEMPTED"])
def test_follow_checks_states_before_requeue_twice(monkeypatch, state):
    """States that a requeue may follow are checked twice."""
    fake = Slurm(monkeypatch, at("RUNNING"), at(state), at("PENDING", restarts=1), at("COMPLETED", restarts=1))
    assert fake.follow() == 0


def test_follow_waits_for_unreachable_controller(monkeypatch):
    gone = NoAnswerError("scontrol: Unable to contact slurm controller (connect failure)")
    fake = Slurm(monkeypatch, at("RUNNING"), gone, gone, at("RUNNING"), at("COMPLETED"))
    assert fake.follow() == 0
    assert [line for line in fake.told if "controller" in line] == [
        "scontrol: Unable to contact slurm controller (connect failure); the job goes on without it, waiting",
        "the controller answers again",
    ]


def test_follow_queries_sacct_for_purged_job(monkeypatch, tmp_path):
    log = tmp_path / "log"
    log.write_text("one\n")
    rows = [
        [("67", "RUNNING", "0:0", "node3", "00:01:00")],
        [("67", "CANCELLED by 0", "0:15", "node3", "00:01:01")],
    ]
    monkeypatch.setattr(slurm, "history", lambda fields, job_id: rows.pop(0) if len(rows) > 1 else rows[0])
    fake = Slurm(monkeypatch, at("RUNNING", log=log), None, happens=[lambda: log.write_text("one\ntwo\n")])
    assert fake.follow() == 143
    assert fake.shown == ["one", "two"]
    assert fake.told[-1] == "job 67: CANCELLED after 00:01:01 exit code 143"


def test_follow_unknown_job_refused(monkeypatch):
    monkeypatch.setattr(slurm, "history", lambda fields, job_id: None)
    with pytest.raises(UsageError, match="no job 67"):
        Slurm(monkeypatch, None).follow()
    with pytest.raises(ToolError, match="forgotten job 67"):
        Slurm(monkeypatch, at("RUNNING"), None).follow()


def test_follow_prints_log_as_it_grows(monkeypatch, tmp_path):
    log = tmp_path / "a b.log"

    def append(text):
        with log.open("a") as file:
            file.write(text)

    fake = Slurm(
        monkeypatch,
        at("RUNNING", log=log),
        at("RUNNING", log=log),
        at("COMPLETED", log=log),
        happens=[
            lambda: append("one\ntw"),
            lambda: append("o\n"),
            lambda: append("three"),
            lambda: append("\nlast"),
        ],
    )
    assert fake.follow() == 0
    assert fake.shown == ["one", "two", "three", "last"]


def test_follow_all_tasks_of_job_array(monkeypatch, tmp_path):
    done = re.sub(r"JobState=\S+", "JobState=COMPLETED", recorded("job-array"))
    logs = {label: tmp_path / f"{label}.log" for label in ("66_0", "66_1", "66_2", "66_3")}
    for label, path in logs.items():
        path.write_text(f"{label} speaks\n")
        done = done.replace(f"/home/ada/jobs/sweep-{label}.log", str(path))
    failed = done.replace("JobState=COMPLETED", "JobState=FAILED", 1).replace("ExitCode=0:0", "ExitCode=5:0", 1)
    fake = Slurm(monkeypatch, recorded("job-array"), failed)
    assert fake.follow("66") == 5
    assert sorted(fake.shown) == [f"[{label}] {label} speaks" for label in logs]
    assert "job 66_2: RUNNING on node5" in fake.told


def test_follow_poll_interval_grows():
    """The controller is polled less and less often."""
    assert interval(0) == 1
    assert interval(60) == 3
    assert interval(10_000) == 10


def test_scontrol_job_records_parsed():
    (job,) = read_jobs(recorded("job"))
    assert (job.label, job.state, job.nodes, job.log) == (
        "62",
        "RUNNING",
        "node2",
        "/home/ada/jobs/slurm-62.out",
    )
    (waiting,) = read_jobs(recorded("job-waiting"))
    assert (waiting.state, waiting.reason, waiting.nodes) == ("PENDING", "DependencyNeverSatisfied", "")
    (failed,) = read_jobs(recorded("job-failed"))
    assert (failed.result, failed.restarts) == (3, 0)
    assert [view.label for view in read_jobs(recorded("job-array"))] == ["66_0", "66_1", "66_2", "66_3"]


def test_job_name_that_looks_like_a_job_state():
    """A name that looks like a state is only a name."""
    text = recorded("job").replace("JobName=t5 large", "JobName=x JobState=FAILED ExitCode=9:0")
    (view,) = read_jobs(text)
    assert (view.state, view.exit_code) == ("RUNNING", 0)


def test_pending_array_tasks_have_no_log():
    """Tasks that have not started have no log."""
    text = re.sub(r"ArrayTaskId=3 ", "ArrayTaskId=2-3%2 ", recorded("job-array")).replace("_3.log", "_4294967294.log")
    waiting = next(view for view in read_jobs(text) if "[" in view.label)
    assert (waiting.label, waiting.log) == ("66_[2-3%2]", None)


def test_job_log_path_patterns_expanded():
    text = re.sub(r"StdOut=.*", "StdOut=logs/%x-%5j-%N-%%%n%t%s.log", recorded("job"))
    assert read_jobs(text)[0].log == "/home/ada/jobs/logs/t5 large-00062-node2-%00batch.log"


def test_sacct_row_parsed():
    view = from_history(("67", "FAILED", "3:0", "None assigned", "00:00:01"))
    assert (view.state, view.result, view.nodes) == ("FAILED", 3, "")


def test_follow_reports_state_changes_only():
    """Something is reported only when the job has changed."""
    watch = JobMonitor("7")
    waiting = JobStatus(label="7", state="PENDING", reason="Priority")
    assert watch.update([waiting]) == ["job 7: PENDING (Priority)"]
    assert watch.update([waiting]) == []
    assert watch.update([JobStatus(label="7", state="PENDING", reason="Resources")]) == ["job 7: PENDING (Resources)"]
    assert not watch.ended


def test_log_tail_after_truncation(tmp_path):
    log = tmp_path / "log"
    tail = LineTail(log)
    assert added_lines(tail) == []
    log.write_bytes(b"first \xff\nsecond\n")
    assert added_lines(tail) == ["first �", "second"]
    log.write_text("new\nhalf")  # --open-mode=truncate after a requeue
    assert added_lines(tail) == ["new"]
    assert added_lines(tail, last=True) == ["half"]
    assert added_lines(tail, last=True) == []


@pytest.fixture
def sbatch(tmp_path, monkeypatch):
    """A stand-in for sbatch that keeps its stdin; returns a function that sets its answer."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("SLURM_CONF", raising=False)

    def answers(out, err="", code=0):
        path = stand_in(tmp_path, "sbatch", ("", out, err, code))
        text = path.read_text()
        keep = f"open({str(tmp_path / 'script')!r}, 'wb').write(sys.stdin.buffer.read())\n"
        path.write_text(text.replace("words = ", keep + "words = ", 1))
        return tmp_path

    return answers


def test_sbatch_submit(sbatch):
    folder = sbatch("1234;lab\n", "sbatch: Verify: fine\n")
    remarks = []
    assert submit.submit("#!/bin/bash\necho \udcff\n", ["--hold"], notify=remarks.append) == "1234"
    assert (folder / "script").read_bytes() == b"#!/bin/bash\necho \xff\n"
    assert (folder / "calls").read_text() == "sbatch --parsable --hold\n"
    assert remarks == ["sbatch: Verify: fine"]


def test_sbatch_refusal_quoted(sbatch):
    sbatch("", "sbatch: error: Batch job submission failed: Invalid qos specification\n", 1)
    with pytest.raises(ToolError, match="refuses the job: Batch job submission failed: Invalid qos specification"):
        submit.submit("#!/bin/bash\n")


def test_sbatch_test_only_forecasts_start(sbatch):
    printed = "sbatch: Job 15 to start at 2026-11-21T08:44:13 using 4 processors on nodes node[1-2] in partition gpu\n"
    folder = sbatch("", printed)
    expected = "would start at 2026-11-21T08:44:13 on node[1-2] of partition gpu with 4 cores"
    assert submit.test_only("#!/bin/bash\n") == expected
    assert (folder / "calls").read_text() == "sbatch --test-only\n"
    assert submit.forecast(printed.replace("2026", "2383")).endswith("when jobs that have no time limit end")
    sbatch("", "allocation failure: Requested node configuration is not available\n", 1)
    with pytest.raises(ToolError, match="could not start the job now: allocation failure: Requested node"):
        submit.test_only("#!/bin/bash\n")


def test_follow_ends_for_job_that_never_starts(monkeypatch):
    """A job whose dependency has failed waits for ever; who follows it does not."""
    with pytest.raises(ToolError, match=r"job 67 will never start: .* \(scancel 67\)"):
        Slurm(monkeypatch, at("PENDING", reason="DependencyNeverSatisfied")).follow()
