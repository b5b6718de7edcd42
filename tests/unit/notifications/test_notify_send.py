"""Messages really sent: to a server on this machine, through a sendmail, to commands; and what may go wrong."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import psutil
import pytest

from dsrun.errors import ToolError, UsageError
from dsrun.notifications.notification import RunFacts, sample
from dsrun.notifications.notify_target import parse_target
from dsrun.notifications.send import send

FACTS = RunFacts(run="/runs/a", name="t5", host="gpu07")
MESSAGE = sample(FACTS, "2026-11-25T12:00:00.000Z")
PATH = "/services/hunter2"


def program(folder: Path, text: str, name: str = "tell.sh") -> Path:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


def send_to(text: str, **environ: str) -> None:
    send(parse_target(text), MESSAGE, environ)


@pytest.mark.parametrize("kind", ["slack", "discord", "feishu", "dingtalk", "wecom", "teams", "json"])
def test_webhook_gets_one_post(hook, kind):
    send_to("env:CHAT", CHAT=f"{kind}+{hook.url}{PATH}")
    assert hook.paths == [PATH]
    assert "GPU memory exhausted" in json.dumps(hook.bodies[0])


def test_signed_webhooks(hook):
    send_to("dingtalk+env:CHAT?secret_env=KEY", CHAT=f"{hook.url}/robot/send?access_token=a", KEY="SECx")
    assert hook.paths[0].startswith("/robot/send?access_token=a&timestamp=")
    send_to("env:CHAT?secret_env=KEY", CHAT=f"feishu+{hook.url}/hook", KEY="SECx")
    assert set(hook.bodies[1]) == {"timestamp", "sign", "msg_type", "content"}


@pytest.mark.parametrize("status", [429, 503])
def test_busy_server_is_asked_once_more(hook, status):
    hook.answers = [(status, b""), (200, b"")]
    send_to(f"{hook.url}/plain")
    assert len(hook.paths) == 2


@pytest.mark.parametrize(
    ("answers", "asked", "why"),
    [
        ([(503, b"")], 2, "answered HTTP 503"),
        ([(404, b"hunter2")], 1, "answered HTTP 404"),
        ([(302, b"")], 1, "answered HTTP 302"),
        ([(200, b'{"code": 19024, "msg": "Key Words Not Found"}')], 1, "refused it: code 19024: Key Words Not Found"),
    ],
)
def test_message_that_is_not_taken(hook, answers, asked, why):
    """The error names the host; a redirection is not followed."""
    hook.answers = answers
    with pytest.raises(ToolError) as error:
        send_to("feishu+env:CHAT", CHAT=hook.url + PATH)
    assert str(error.value).endswith(why)
    assert hook.url in str(error.value)
    assert "hunter2" not in str(error.value)
    assert hook.paths == [PATH] * asked


def test_server_that_hangs_is_given_up(hook):
    hook.hangs = True
    with pytest.raises(ToolError, match="timed out") as error:
        send_to("slack+env:CHAT", CHAT=hook.url + PATH)
    assert "hunter2" not in str(error.value)
    assert not hook.released.is_set()


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ToolError, match="Connection refused"):
        send_to("slack+env:CHAT", CHAT=f"http://127.0.0.1:{port}{PATH}")


def test_proxy_of_environment_is_used(hook, monkeypatch):
    monkeypatch.setenv("http_proxy", hook.url)
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("NO_PROXY", "")
    send_to("http://hooks.invalid/plain")
    assert hook.paths == ["http://hooks.invalid/plain"]


def test_mail_through_sendmail(tmp_path, monkeypatch):
    """The recipients are in the mail, and on no command line."""
    program(tmp_path, f'echo "$@" > {tmp_path}/args; cat > {tmp_path}/mail', "sendmail")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    send_to("mailto:team@example.org")
    assert (tmp_path / "args").read_text() == "-i -t\n"
    text = (tmp_path / "mail").read_text()
    assert "To: team@example.org\n" in text
    assert "Subject: [dsrun] t5 failed after step 120: GPU memory exhausted\n" in text


def test_no_sendmail(monkeypatch, tmp_path):
    monkeypatch.setattr("dsrun.notifications.send._SENDMAIL_FOLDERS", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolError, match="no program sendmail"):
        send_to("mailto:team@example.org")


def test_command_gets_json_on_stdin_and_line_in_variable(tmp_path):
    file = program(tmp_path, f'printf %s "$DSRUN_NOTIFY_TEXT" > {tmp_path}/text; cat > {tmp_path}/json')
    send_to(f"{file} 'a b'")
    assert (tmp_path / "text").read_text() == MESSAGE.headline
    assert json.loads((tmp_path / "json").read_text()) == MESSAGE.as_dict()


def test_command_that_reads_nothing_is_fine(tmp_path):
    send_to(str(program(tmp_path, "exit 0")))


@pytest.mark.parametrize(("text", "why"), [("exit 3", "exit code 3"), ("kill -9 $$", "exit code 137")])
def test_command_that_fails(tmp_path, text, why):
    with pytest.raises(ToolError, match=why):
        send_to(str(program(tmp_path, text)))


def test_command_that_is_missing():
    with pytest.raises(ToolError, match="not-there: there is no such command"):
        send_to("./not-there")


def test_command_may_be_a_pipe_and_use_the_variable(tmp_path):
    send_to(f'cat | tee {tmp_path}/json >/dev/null && echo "$DSRUN_NOTIFY_TEXT" > {tmp_path}/text')
    assert (tmp_path / "text").read_text() == MESSAGE.headline + "\n"
    assert json.loads((tmp_path / "json").read_text()) == MESSAGE.as_dict()


def test_command_that_hangs_is_killed_with_its_children(tmp_path):
    file = program(tmp_path, f"sleep 600 & echo $$ $! > {tmp_path}/pids; wait")
    with pytest.raises(ToolError, match="did not end within 2 s"):
        send_to(str(file))
    gone = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    psutil.wait_procs([psutil.Process(pid) for pid in gone if psutil.pid_exists(pid)], timeout=60)
    assert not [pid for pid in gone if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


def test_variable_that_is_not_set():
    with pytest.raises(UsageError, match="CHAT is not set"):
        send_to("env:CHAT")
