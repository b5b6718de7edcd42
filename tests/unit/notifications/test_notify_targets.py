"""Values of --notify: what they name, what is refused, and that no error shows a secret."""

from __future__ import annotations

import pytest

from dsrun.errors import UsageError
from dsrun.notifications.notify_target import parse_target, parse_targets, services, variable_names

SECRET = "T01ABCDEF/B02GHIJKL/abcdefghij0123456789"
URLS = {
    "slack": f"https://hooks.slack.com/services/{SECRET}",
    "discord": f"https://discord.com/api/webhooks/{SECRET}",
    "feishu": f"https://open.larksuite.com/open-apis/bot/v2/hook/{SECRET}",
    "dingtalk": f"https://oapi.dingtalk.com/robot/send?access_token={SECRET}",
    "wecom": f"https://qyapi.weixin.qq.com/cgi-bin/webhook/send?key={SECRET}",
    "teams": f"https://prod-12.westeurope.logic.azure.com:443/workflows/{SECRET}/triggers/manual?sig=x",
}


@pytest.mark.parametrize("kind", URLS)
def test_service_is_known_by_host_of_url_in_variable(kind):
    target = parse_target("env:CHAT")
    address = target.address({"CHAT": f" {URLS[kind]}\n"})
    assert (address.kind, address.url) == (kind, URLS[kind])
    assert SECRET not in address.shown


@pytest.mark.parametrize("kind", URLS)
def test_url_with_secret_on_command_line_is_refused_unseen(kind):
    """The error names a variable to put it into, and shows no more than the host."""
    with pytest.raises(UsageError) as error:
        parse_target(URLS[kind])
    text = str(error.value)
    assert f"--notify env:{services()[kind].variable}" in text
    assert not [part for part in SECRET.split("/") if part in text]
    assert "\n" not in text


@pytest.mark.parametrize(
    "text",
    [
        "https://me:hunter2@example.org/hook",
        "https://example.org/hook?token=hunter2",
        "https://example.org/hook?hunter2hunter2hunter2hunter2",
        "https://example.org/hooks/4f5c1a6e-hunter2-4e1c-9b0a-0123456789ab",
        "json+https://example.org/hooks/hunter2hunter2hunter2hunter2",
        "slack+https://chat.example.org/hooks/hunter2",
        "curl -H 'Authorization: Bearer hf_hunter2hunter2hunter2hunter2' https://example.org",
        "https://api.telegram.org/bot110201543:AAHhunter2vCH1vGWJxfSeofSAs0K5PALDsaw/sendMessage?chat_id=5",
        "./tell.sh --password hunter2",
    ],
)
def test_other_secrets_on_command_line_are_refused_unseen(text):
    with pytest.raises(UsageError, match="variable") as error:
        parse_target(text)
    assert "hunter2" not in str(error.value)


def test_refused_prefixed_url_keeps_its_prefix_in_the_fix():
    with pytest.raises(UsageError, match=r"--notify slack\+env:SLACK_URL"):
        parse_target("slack+https://chat.example.org/hooks/abc")


@pytest.mark.parametrize("text", ["https://example.org/dsrun", "http://10.0.0.1:8080/runs/team-a?from=dsrun"])
def test_plain_json_webhook_may_stand_on_command_line(text):
    address = parse_target(text).address({})
    assert (address.kind, address.url) == ("json", text)


def test_prefix_tells_service_of_unknown_host():
    assert parse_target("slack+env:CHAT").address({"CHAT": "https://chat.example.org/x"}).kind == "slack"
    assert parse_target("env:CHAT").address({"CHAT": "lark+https://chat.example.org/x"}).kind == "feishu"
    assert parse_target("env:CHAT").address({"CHAT": "https://chat.example.org/x"}).kind == "json"


def test_signing_secret_is_named_by_variable():
    target = parse_target("env:DING?secret_env=DING_KEY")
    assert target.variables == ("DING", "DING_KEY")
    address = target.address({"DING": URLS["dingtalk"], "DING_KEY": "SECabc"})
    assert address.secret == "SECabc"
    with pytest.raises(UsageError, match="slack messages are not signed"):
        target.address({"DING": URLS["slack"], "DING_KEY": "SECabc"})


@pytest.mark.parametrize(("text", "missing"), [("env:A", "A"), ("env:A?secret_env=B", "B")])
def test_variable_that_is_not_set_is_named(text, missing):
    environ = {"A": URLS["feishu"], "B": ""} if missing == "B" else {}
    with pytest.raises(UsageError, match=rf"{missing} is not set \(export {missing}=…\)"):
        parse_target(text).address(environ)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("hooks.slack.com/services/hunter2", "begins with https://"),
        ("ftp://example.org/hunter2", "begins with https://"),
        ("https://[hunter2", "not a URL"),
        ("https://example.org/hunter2 x", "not a URL"),
        ("mailto:hunter2", "not an e-mail address"),
        ("echo 'hunter2", "not a command"),
        ("slak+https://example.org/hunter2", "did you mean slack"),
    ],
)
def test_wrong_value_is_refused_unseen(value, message):
    """In a variable and on the command line."""
    for text, environ in (("env:URL", {"URL": value}), (value, {})):
        with pytest.raises(UsageError, match=message) as error:
            parse_target(text).address(environ)
        assert "hunter2" not in str(error.value)


def test_address_without_scheme_is_refused_with_the_url(tmp_path, monkeypatch):
    """Unless it is a program, or may hold a secret."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.tools").mkdir()
    (tmp_path / "my.tools" / "tell").touch()
    assert parse_target("my.tools/tell x").kind == "command"
    with pytest.raises(UsageError, match=r"write https://slack\.com/x"):
        parse_target("slack.com/x")
    for text, environ in (("slack.com/x?key=hunter2", {}), ("env:URL", {"URL": "slack.com/hunter2"})):
        with pytest.raises(UsageError, match="begins with https://") as error:
            parse_target(text).address(environ)
        assert "hunter2" not in str(error.value)


def test_program_that_is_not_here_is_told():
    with pytest.raises(UsageError, match="no such program"):
        parse_target("./tell-nobody.sh").usable_address({})


def test_variable_without_env_is_proposed():
    with pytest.raises(UsageError, match="--notify env:SLACK_URL"):
        parse_target("SLACK_URL")
    with pytest.raises(UsageError, match="not the name of a variable"):
        parse_target("env:https://example.org/hunter2")


def test_mail_and_command():
    mail = parse_target("mailto:a@example.org,b@example.org").address({})
    assert (mail.kind, mail.recipient) == ("mail", "a@example.org,b@example.org")
    command = parse_target("./tell.sh --to 'the team'").address({})
    assert (command.kind, command.argv) == ("command", ("./tell.sh", "--to", "the team"))


def test_target_that_is_given_twice_counts_once():
    assert len(parse_targets(["env:A", "mailto:a@example.org", "env:A"])) == 2


def test_variables_named_in_command_line():
    words = ["dsrun", "train", "--notify", "env:A", "slack+env:B?secret_env=C", "--notify=env:D", "--model", "x"]
    assert variable_names(words) == {"A", "B", "C", "D"}
    assert variable_names(["--model", "env:A"]) == set()
