"""The process that sends messages, started as the supervisor starts it, on a run folder that others write."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from dsrun.diagnosis.run_diagnosis import of_run
from dsrun.notifications.follow import LOG
from dsrun.notifications.notification import RunFacts, SupervisorEnd
from dsrun.notifications.process import NotificationSender, preview
from dsrun.runs.folder import RunFolder
from dsrun.runs.records import EventLog, LineAppender, read_records

PATH = "/services/hunter2"
ROOT = Path(__file__).parents[3]
PATIENCE_S = 60


@pytest.fixture
def run(tmp_path):
    return RunFolder.create(tmp_path / "run")


@pytest.fixture
def chat(hook, monkeypatch):
    """env:CHAT leads to the server. A machine that is busy for seconds does not cut a message off."""
    monkeypatch.setattr("dsrun.notifications.process.LAST_S", PATIENCE_S)
    monkeypatch.setenv("CHAT", f"json+{hook.url}{PATH}")
    return hook


def until(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def facts(run: RunFolder) -> RunFacts:
    return RunFacts(run=str(run.path), name="t5", host="gpu07")


def kinds(hook) -> list[str]:
    return [body["kind"] for body in hook.bodies]


def test_events_are_told_while_the_run_goes_on(run, chat):
    """What was there before is not told again; the secret is in no file and on no command line."""
    with EventLog(run.events) as log:
        log.write("nan", step=1, message="of an earlier start")
    sender = NotificationSender(facts(run), ["env:CHAT", "true --a-command-line"])
    assert sender.pid is not None
    with EventLog(run.events) as log, LineAppender(run.metrics) as metrics:
        metrics.append({"step": 6, "loss": 1.5})
        log.write("nan", step=7, message="loss is NaN")
        until(lambda: chat.bodies)
        assert (chat.bodies[0]["step"], chat.bodies[0]["detail"]) == (7, "loss is NaN")
        command_line = Path(f"/proc/{sender.pid}/cmdline").read_bytes()
        log.write("failure", cause="rank_killed", rank=1, message="rank 1 was killed (SIGKILL)")
        log.write("restart", attempt=1, message="again")
        until(lambda: len(chat.bodies) == 2)
    sender.ended(SupervisorEnd(exit_code=0))
    assert sender.close() == []
    assert kinds(chat) == ["nan", "restart", "finish"]
    assert chat.bodies[2]["loss"] == 1.5
    assert b"dsrun.notifications.follow" in command_line
    assert b"hunter2" not in command_line
    assert b"--a-command-line" not in command_line
    written = "".join(path.read_text() for path in run.path.rglob("*") if path.is_file())
    told = [(line["kind"], line["target"], line["sent"]) for line in read_records(run.logs / LOG)]
    assert ("finish", "env:CHAT", True) in told
    assert "hunter2" not in written


def test_end_right_after_the_start_is_told(run, chat):
    sender = NotificationSender(facts(run), ["env:CHAT"])
    with EventLog(run.events) as log:
        log.write("failure", cause="rendezvous_timeout", message="node 1 did not join")
    sender.ended(SupervisorEnd(exit_code=1, message="node 1 did not join"))
    assert sender.close() == []
    assert [(body["kind"], body["cause"]["code"]) for body in chat.bodies] == [("failure", "rendezvous_timeout")]


def test_run_that_moved_its_earlier_results_aside_is_followed(run, chat):
    """--resume never does so."""
    with EventLog(run.events) as log:
        for step in range(50):
            log.write("progress", step=step)
    sender = NotificationSender(facts(run), ["env:CHAT"])
    run.events.rename(run.path / "earlier.jsonl")
    with EventLog(run.events) as log:
        log.write("nan", step=1, message="new")
    until(lambda: chat.bodies)
    assert chat.bodies[0]["detail"] == "new"
    sender.ended(SupervisorEnd(exit_code=130))
    sender.close()


def test_server_that_hangs_holds_nobody(run, chat):
    """The supervisor goes on and ends; nothing is left, and the log says what happened."""
    chat.hangs = True
    sender = NotificationSender(facts(run), ["env:CHAT"])
    sender.ended(SupervisorEnd(exit_code=0))
    (why,) = sender.close()
    assert "hunter2" not in why
    assert not chat.released.is_set()
    assert not psutil.pid_exists(sender.pid)
    (line,) = read_records(run.logs / LOG)
    assert (line["sent"], line["error"]) == (False, why)


def test_what_was_sent_is_no_log_of_the_run(run, chat):
    """`dsrun diagnose` takes the newest log beside those of the ranks for the launcher's."""
    (run.logs / "20261125-120000-launcher.log").write_text("torch.OutOfMemoryError: CUDA out of memory.\n")
    chat.answers = [(503, b"")]
    sender = NotificationSender(facts(run), ["env:CHAT"])
    sender.ended(SupervisorEnd(exit_code=1))
    assert sender.close()
    assert (run.logs / LOG).is_file()
    assert of_run(run.path).cause.code == "cuda_oom"


def test_signals_to_all_do_not_silence_it(run, chat):
    sender = NotificationSender(facts(run), ["env:CHAT"])
    with EventLog(run.events) as log:
        log.write("nan", step=1, message="so that it is there")
    until(lambda: chat.bodies)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        os.kill(sender.pid, signum)
    sender.ended(SupervisorEnd(exit_code=75, message="stopped by SIGTERM"))
    assert sender.close() == []
    assert kinds(chat) == ["nan", "preemption"]


def test_sender_that_was_killed_ends_no_run(run, chat):
    sender = NotificationSender(facts(run), ["env:CHAT"])
    os.kill(sender.pid, signal.SIGKILL)
    psutil.Process(sender.pid).wait(PATIENCE_S)
    sender.ended(SupervisorEnd(exit_code=0))
    assert sender.close() == []
    assert chat.bodies == []


def test_sender_that_is_stuck_is_killed_at_the_end(run, chat, monkeypatch):
    monkeypatch.setattr("dsrun.notifications.process.LAST_S", 0.1)
    sender = NotificationSender(facts(run), ["env:CHAT"])
    os.kill(sender.pid, signal.SIGSTOP)
    sender.ended(SupervisorEnd(exit_code=0))
    assert sender.close() == ["the last message was not sent in time"]
    assert not psutil.pid_exists(sender.pid)


def test_killed_supervisor_is_told(run, chat):
    """By the process that it has started, which then ends too."""
    code = (
        "import json, sys, time\n"
        "from dsrun.notifications.process import NotificationSender\n"
        "from dsrun.notifications.notification import RunFacts\n"
        "sender = NotificationSender(RunFacts(**json.loads(sys.argv[1])), ['env:CHAT'])\n"
        "print(sender.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    argv = [sys.executable, "-c", code, json.dumps(vars(facts(run)))]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout
        sender = int(supervisor.stdout.readline())
        supervisor.kill()
    until(lambda: chat.bodies)
    assert (chat.bodies[0]["kind"], chat.bodies[0]["cause"]["code"]) == ("failure", "run_killed")
    until(lambda: not psutil.pid_exists(sender) or psutil.Process(sender).status() == psutil.STATUS_ZOMBIE)


def test_target_that_fails_leaves_others_their_messages(run, chat):
    sender = NotificationSender(facts(run), ["env:NOT_SET", "env:CHAT"])
    sender.ended(SupervisorEnd(exit_code=0))
    (why,) = sender.close()
    assert "NOT_SET is not set" in why
    assert kinds(chat) == ["finish"]


def test_preview_shows_payload_and_no_secret(run):
    environ = {"DING": "https://oapi.dingtalk.com/robot/send?access_token=hunter2", "KEY": "hunter3"}
    lines = preview(facts(run), ["env:DING?secret_env=KEY", "mailto:a@example.org", "env:NOT_SET"], environ)
    text = "\n".join(lines)
    assert "to https://oapi.dingtalk.com/***, DingTalk, by POST (signed):" in text
    assert '"msgtype": "text"' in text
    assert "To: a@example.org" in text
    assert "NOT_SET is not set" in text
    assert "hunter" not in text
