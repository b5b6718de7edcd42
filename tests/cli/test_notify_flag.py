"""--notify and --log-format as a user gives them: refused secrets, the preview of --dry-run, job scripts."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from tests.ports import free_ports
from tests.webhook import webhook

URL = "https://hooks.slack.com/services/T01ABCDEF/B02GHIJKL/hunter2hunter2"
LAUNCH = ("launch", "--dry-run", "--output", "run")
TRAIN = ("train", "--dry-run", "--model", "demo-t5", "--nproc", "1", "--output", "run")


@pytest.mark.parametrize(
    "args",
    [
        (*LAUNCH, "--notify", URL, "--", "true"),
        (*TRAIN, "--notify", URL),
        (*TRAIN, "--config", "run.yaml"),
        ("render-slurm", "--notify", URL, "--", "python", "train.py"),
        ("render-slurm", "--", "train", "--model", "demo-t5", "--notify", URL),
    ],
    ids=["launch", "train", "run.yaml", "render-slurm", "render-slurm train"],
)
def test_url_that_is_a_secret_is_refused(dsrun, here, args):
    """With one line that says where to put it, and does not show it."""
    (here / "run.yaml").write_text(f"train: {{notify: ['{URL}']}}\n")
    done = dsrun(*args)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("error: --notify https://hooks.slack.com/***: the URL is a secret")
    assert done.stderr.endswith("put it into a variable, and write --notify env:SLACK_URL)\n")
    assert "hunter2" not in done.stderr


@pytest.mark.parametrize("args", [(*LAUNCH, "--notify", "env:CHAT", "--", "true"), (*TRAIN, "--notify", "env:CHAT")])
def test_dry_run_shows_what_would_be_sent(dsrun, environ, args):
    environ["CHAT"] = URL
    done = dsrun(*args)
    assert done.returncode == 0, done.stderr
    assert "note: --notify env:CHAT: to https://hooks.slack.com/***, Slack, by POST:\n" in done.stderr
    (payload,) = (line for line in done.stderr.splitlines() if line.startswith("{"))
    assert "failed after step 120: GPU memory exhausted" in json.loads(payload)["text"]
    assert "hunter2" not in done.stderr + done.stdout
    assert "by POST" not in done.stdout


def test_dry_run_names_variable_that_is_not_set(dsrun):
    done = dsrun(*LAUNCH, "--notify", "env:CHAT", "--", "true")
    assert done.returncode == 0
    assert "note: --notify env:CHAT: CHAT is not set (export CHAT=…)\n" in done.stderr


def test_all_targets_of_a_command_line_are_kept(dsrun):
    done = dsrun(*TRAIN, "--notify", "env:ONE", "--notify", "mailto:a@example.org", "env:TWO")
    assert [f"--notify {each}:" in done.stderr for each in ("env:ONE", "mailto:a@example.org", "env:TWO")] == [True] * 3


def test_variables_of_targets_are_sent_to_other_machines(dsrun, here, environ):
    """Over ssh's stdin, those of the program's flags too; the flag itself is on each command line."""
    environ |= {"CHAT": URL, "KEY": "hunter3", "OTHER": URL, "UNRELATED": "x"}
    (here / "hosts").write_text("alpha slots=1\nbeta slots=1\n")
    flags = ["--hostfile", "hosts", "--master-addr", "alpha", "--notify", "env:CHAT?secret_env=KEY"]
    done = dsrun("launch", "--dry-run", *flags, "--", "dsrun", "train", "--model", "x", "--notify", "env:OTHER")
    assert done.returncode == 0, done.stderr
    (sent,) = (line for line in done.stderr.splitlines() if "sent over stdin: " in line)
    assert {"CHAT", "KEY", "OTHER"} <= set(sent.partition("stdin: ")[2].split(", "))
    assert "UNRELATED" not in sent
    assert done.stdout.count("--notify") == 4
    assert "hunter" not in done.stdout + done.stderr


@pytest.mark.parametrize("program", [("train", "--model", "demo-t5", "--output", "run"), ("python", "my_train.py")])
def test_job_script_hands_targets_to_each_supervisor(dsrun, here, program):
    (here / "my_train.py").touch()
    done = dsrun("render-slurm", "--notify", "env:CHAT", "--notify", "./tell.sh 'a b'", "--", *program)
    assert done.returncode == 0, done.stderr
    assert "--notify env:CHAT --notify './tell.sh '\"'\"'a b'\"'\"''" in done.stdout


def test_job_script_of_training_keeps_its_own_flag(dsrun):
    done = dsrun("render-slurm", "--", "train", "--model", "demo-t5", "--notify", "env:CHAT", "--log-format", "json")
    assert "-- dsrun.train --model demo-t5 --notify env:CHAT --log-format json" in done.stdout


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--no-supervise",), "--notify: the job has no supervisor"),
        (("--clean-env", "--env", "OTHER"), "--clean-env hides CHAT from the job (add --env CHAT)"),
    ],
)
def test_job_that_could_not_send_is_refused(dsrun, here, flags, message):
    (here / "my_train.py").touch()
    done = dsrun("render-slurm", "--notify", "env:CHAT", *flags, "--", "python", "my_train.py")
    assert done.returncode == 2
    assert message in done.stderr


TWO_NODES = ("--nodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1", "--output", "run")


@pytest.fixture
def hook(environ):
    """A server that env:CHAT leads to."""
    with webhook() as found:
        environ |= {"CHAT": f"json+{found.url}/hunter2", "no_proxy": "127.0.0.1"}
        yield found


def test_node_that_does_not_join_is_told(dsrun, hook):
    flags = (*TWO_NODES, "--master-port", str(free_ports(2)), "--rendezvous-timeout", "1", "--notify", "env:CHAT")
    assert dsrun("launch", *flags, "--", "true").returncode == 1
    (message,) = hook.bodies
    assert (message["kind"], message["cause"]["code"]) == ("failure", "rendezvous_timeout")
    assert "node 1 did not join" in message["detail"]


def test_signal_before_the_start_is_told(here, environ, hook):
    flags = (*TWO_NODES, "--master-port", str(free_ports(2)), "--notify", "env:CHAT")
    argv = [sys.executable, "-m", "dsrun", "launch", *flags, "--", "true"]
    with subprocess.Popen(argv, cwd=here, env=environ, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr
        while "export DSRUN_SECRET" not in child.stderr.readline():
            assert child.poll() is None
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=60)
    assert child.returncode == 75
    (message,) = hook.bodies
    assert message["kind"] == "preemption"
    assert message["detail"].startswith("SIGTERM came before the run started")


def test_server_that_fails_changes_nothing_but_a_note(dsrun, hook):
    hook.answers = [(404, b"")]
    flags = (*TWO_NODES, "--master-port", str(free_ports(2)), "--rendezvous-timeout", "1")
    done = dsrun("launch", *flags, "--notify", "env:CHAT", "--", "true")
    assert done.returncode == 1
    assert f"note: --notify: {hook.url}/*** answered HTTP 404\n" in done.stderr
    assert "hunter2" not in done.stderr


@pytest.mark.parametrize(
    "args",
    [
        ("train", "--log-format", "json", "--modle", "x"),
        ("train", "--zero", "7", "--log_format=json"),
        ("launch", "--nproc", "many", "--log-format", "json", "--", "true"),
        ("launch", "--notify", URL, "--log-format=json", "--", "true"),
    ],
)
def test_errors_of_other_flags_are_json_too(dsrun, args):
    done = dsrun(*args)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    found = json.loads(line)
    assert (found["log.level"], found["event.action"], found["event.outcome"]) == ("error", "error", "failure")
    assert "hunter2" not in line


def test_format_may_come_from_the_environment(dsrun, environ):
    environ["DSRUN_LOG_FORMAT"] = "json"
    assert json.loads(dsrun("train", "--modle", "x").stderr)["message"].startswith("unknown flag --modle")
    assert dsrun("train", "--modle", "x", "--log-format", "text").stderr.startswith("error: unknown flag --modle")
