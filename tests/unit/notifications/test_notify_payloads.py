"""What each service is sent, and that no text of a run becomes markup, mentions or a second message."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import pytest

from dsrun.notifications.notification import Notification, NotifiedCause, RunFacts
from dsrun.notifications.notify_target import NotifyAddress, services
from dsrun.notifications.send import mail, refusal, request

FACTS = RunFacts(run="/scratch/runs/t5_large", name="t5-large", host="gpu07", job_id="4711")
FAILURE = Notification(
    kind="failure",
    facts=FACTS,
    time="2026-11-25T12:00:00.000Z",
    step=120,
    max_steps=1000,
    loss=1.23456,
    cause=NotifiedCause.of("cuda_oom"),
    rank=3,
    detail="torch.OutOfMemoryError <@U1> @everyone & `x` *y*",
    exit_code=1,
)
NOW = 1_764_072_000.5
URL = "https://example.org/hook?key=k"


def body(kind, message=FAILURE, **address):
    return json.loads(request(NotifyAddress(kind=kind, url=URL, **address), message, NOW)[1])


def test_slack_escapes_its_markup():
    text = body("slack")["text"]
    assert text.startswith("*t5-large failed after step 120: GPU memory exhausted*\n```cause: ")
    assert "&lt;@U1&gt; @everyone &amp; 'x' ·y·" in text
    assert text.count("```") == 2


def test_discord_mentions_nobody():
    content = body("discord")
    assert content["allowed_mentions"] == {"parse": []}
    assert content["content"].startswith("```\nt5-large failed")
    assert content["content"].count("`") == 6


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("feishu", lambda found: found["content"]["text"] if found["msg_type"] == "text" else None),
        ("dingtalk", lambda found: found["text"]["content"] if found["msgtype"] == "text" else None),
        ("wecom", lambda found: found["text"]["content"] if found["msgtype"] == "text" else None),
    ],
)
def test_plain_text_services_get_the_whole_text(kind, text):
    assert text(body(kind)) == FAILURE.text()


def test_teams_gets_adaptive_card_without_markdown():
    """As the workflow "When a Teams webhook request is received" reads it."""
    found = body("teams")
    (attachment,) = found["attachments"]
    assert (found["type"], attachment["contentType"]) == ("message", "application/vnd.microsoft.card.adaptive")
    card = attachment["content"]
    assert card["type"] == "AdaptiveCard"
    assert {block["type"] for block in card["body"]} == {"RichTextBlock"}
    assert [block["inlines"][0]["text"] for block in card["body"]] == FAILURE.text().split("\n")


def test_json_webhook_gets_every_fact():
    found = body("json")
    assert found["version"] == 1
    assert found["kind"] == "failure"
    assert found["text"] == "t5-large failed after step 120: GPU memory exhausted"
    assert (found["run"], found["host"], found["job_id"]) == (FACTS.run, "gpu07", "4711")
    assert (found["step"], found["loss"], found["rank"], found["exit_code"]) == (120, 1.23456, 3, 1)
    assert found["cause"]["code"] == "cuda_oom"
    assert "--micro-batch-size" in found["cause"]["fix"]
    assert found["next"] == "dsrun diagnose /scratch/runs/t5_large"


def test_feishu_signature():
    """The key is the time in seconds and the secret, and nothing is signed: the service's own example."""
    found = body("feishu", secret="s3")
    digest = hmac.new(f"{found['timestamp']}\ns3".encode(), b"", hashlib.sha256).digest()
    assert (found["timestamp"], found["sign"]) == ("1764072000", base64.b64encode(digest).decode())
    assert "sign" not in body("feishu")


def test_dingtalk_signature():
    """The time in milliseconds and the secret are signed with the secret, in the URL."""
    url, content = request(NotifyAddress(kind="dingtalk", url=URL, secret="SECx"), FAILURE, NOW)
    query = parse_qs(urlsplit(url).query)
    digest = hmac.new(b"SECx", b"1764072000500\nSECx", hashlib.sha256).digest()
    assert query == {"key": ["k"], "timestamp": ["1764072000500"], "sign": [base64.b64encode(digest).decode()]}
    assert b"SECx" not in content
    assert request(NotifyAddress(kind="dingtalk", url=URL), FAILURE, NOW)[0] == URL


@pytest.mark.parametrize("kind", ["slack", "discord", "feishu", "dingtalk", "wecom", "teams"])
def test_message_is_cut_to_what_the_service_takes(kind):
    long = replace(FAILURE, detail="错误 " * 5000, log="/" + "x" * 5000)
    content = body(kind, long)
    texts = {
        "slack": lambda: content["text"],
        "discord": lambda: content["content"],
        "feishu": lambda: content["content"]["text"],
        "dingtalk": lambda: content["text"]["content"],
        "wecom": lambda: content["text"]["content"],
        "teams": lambda: "\n".join(each["inlines"][0]["text"] for each in content["attachments"][0]["content"]["body"]),
    }
    text = texts[kind]()
    service = services()[kind]
    assert len(text.encode() if service.bytes else text) <= service.limit
    assert text.rstrip("`\n")[-1] in "误 错…x"


def test_mail_has_subject_recipients_and_text():
    message = replace(FAILURE, detail="one\nTo: everyone@example.org\x1b[2J")
    text = mail(NotifyAddress(kind="mail", recipient="a@example.org,b@example.org"), message).decode()
    head, _, rest = text.partition("\n\n")
    assert head.count("To: ") == 1
    assert "Subject: [dsrun] t5-large failed after step 120: GPU memory exhausted" in head
    assert "\x1b" not in text
    assert "next: dsrun diagnose /scratch/runs/t5_large" in rest


def test_tokens_in_a_message_are_masked():
    found = json.dumps(body("json", replace(FAILURE, detail="401 for hf_abcdefghijklmnopqrstuvwx")))
    assert "hf_abc" not in found
    assert "***" in found


@pytest.mark.parametrize(
    ("kind", "answer", "why"),
    [
        ("feishu", b'{"code": 19021, "msg": "sign match fail"}', "code 19021: sign match fail"),
        ("feishu", b'{"code": 0, "msg": "success"}', None),
        ("dingtalk", b'{"errcode": 310000, "errmsg": "keywords not in content"}', "errcode 310000: keywords"),
        ("wecom", b'{"errcode": 93000, "errmsg": "invalid webhook url"}', "errcode 93000: invalid webhook url"),
        ("wecom", b"<html>", None),
        ("slack", b"ok", None),
    ],
)
def test_refusal_with_status_200_is_seen(kind, answer, why):
    found = refusal(services()[kind], answer)
    assert found is None if why is None else why in found
