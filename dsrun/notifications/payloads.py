"""What each service is sent: pure functions from a message to a URL and a JSON body.

services.toml has the page on which each service describes its format. Messages are plain text, which no service can
take for markup of its own: names of folders have underscores, and messages of programs anything.
"""

import base64
import hashlib
import hmac
import html
import json
from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import quote_plus, urlsplit, urlunsplit

from dsrun.notifications.notification import Notification
from dsrun.notifications.notify_target import NotifyAddress, WebhookService, services
from dsrun.system.terminal.display import printable

_CARD = "application/vnd.microsoft.card.adaptive"
# What can neither end a block of code nor what is bold.
_MARKS = str.maketrans("`*", "'·")
PayloadBody = dict[str, Any]


def request(address: NotifyAddress, message: Notification, now: float) -> tuple[str, bytes]:
    """The URL and the body of the POST by which a webhook gets `message`; `now` is the time in seconds since 1970."""
    body = _body(address.kind, message)
    url = address.url
    if address.secret and address.kind == "feishu":
        stamp = str(int(now))
        body = {"timestamp": stamp, "sign": _signature(key=f"{stamp}\n{address.secret}", text=""), **body}
    if address.secret and address.kind == "dingtalk":
        stamp = str(int(now * 1000))
        parts = urlsplit(url)
        sign = _signature(key=address.secret, text=f"{stamp}\n{address.secret}")
        signed = f"timestamp={stamp}&sign={quote_plus(sign)}"
        url = urlunsplit(parts._replace(query=f"{parts.query}&{signed}" if parts.query else signed))
    return url, json.dumps(body, ensure_ascii=False).encode("utf-8", "backslashreplace")


def refusal(service: WebhookService, answer: bytes) -> str | None:
    """Why a service did not take a message although its answer has HTTP status 200; None where it did."""
    if not service.code:
        return None
    try:
        found = json.loads(answer)
    except ValueError:
        return None
    if not isinstance(found, dict) or found.get(service.code) in (0, None):
        return None
    return printable(f"{service.code} {found[service.code]}: {found.get(service.reason, '')}")[:200]


def _signature(*, key: str, text: str) -> str:
    return base64.b64encode(hmac.new(key.encode(), text.encode(), hashlib.sha256).digest()).decode()


def _body(kind: str, message: Notification) -> PayloadBody:
    """The JSON for a service, with as much of the message as it takes."""
    service = services()[kind]
    if not service.body:
        return _teams(message) if kind == "teams" else message.as_dict()
    # & < > are the only characters that Slack's mrkdwn escapes; in a code block nothing else is markup.
    escape = partial(html.escape, quote=False) if kind == "slack" else str
    head, block = (escape(text.translate(_MARKS)) for text in (message.headline, message.text().partition("\n")[2]))
    names = {"head": head, "block": block[: service.limit - len(head) - 20], "text": _whole_text(message, kind)}
    return {key: _filled(form, names) for key, form in service.body.items()}


def _filled(form: Any, names: Mapping[str, str]) -> Any:
    if isinstance(form, dict):
        return {key: _filled(each, names) for key, each in form.items()}
    return form.format_map(names) if isinstance(form, str) else form


def _teams(message: Notification) -> PayloadBody:
    """An adaptive card, as the workflow "Post to a channel when a webhook request is received" takes it; its
    RichTextBlock, unlike TextBlock and FactSet, knows no Markdown."""
    lines = _whole_text(message, "teams").split("\n")
    head = {"type": "TextRun", "text": lines[0], "weight": "Bolder", "size": "Medium"}
    runs = [{"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": line}]} for line in lines[1:]]
    content = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": [{"type": "RichTextBlock", "inlines": [head]}, *runs],
    }
    return {"type": "message", "attachments": [{"contentType": _CARD, "contentUrl": None, "content": content}]}


def _whole_text(message: Notification, kind: str) -> str:
    """As much of the message's text as the service takes, which may count bytes."""
    text, service = message.text(), services()[kind]
    if service.bytes:
        encoded = text.encode("utf-8", "backslashreplace")
        return text if len(encoded) <= service.limit else encoded[: service.limit - 3].decode("utf-8", "ignore") + "…"
    return text if len(text) <= service.limit else text[: service.limit - 1] + "…"
