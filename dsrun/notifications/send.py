"""Sends one message to one target, within two seconds: a webhook, sendmail, or a command.

What each service is sent are pure functions from a message to a URL and a JSON body; services.toml has the page on
which each describes its format. Messages are plain text, which no service can take for markup of its own: names of
folders have underscores, and messages of programs anything."""

import base64
import hashlib
import hmac
import html
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from email.message import EmailMessage
from email.utils import format_datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus, urlsplit, urlunsplit

from dsrun.errors import ToolError
from dsrun.notifications.notification import Notification
from dsrun.notifications.notify_target import COMMAND, MAIL, NotifyAddress, NotifyTarget, WebhookService, services
from dsrun.system import variables
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


if TYPE_CHECKING:
    from urllib.request import OpenerDirector

TIMEOUT_S = 2.0
"""For all that one message takes, a second attempt included."""
_TRIES = 2
_PAUSE_S = 0.2
_LONGEST_ANSWER = 1 << 16
_TOO_MANY_REQUESTS = 429
_SERVER_ERRORS = range(500, 600)
# Where sendmail is, which is not on every PATH.
_SENDMAIL_FOLDERS = ("/usr/sbin", "/usr/lib", "/usr/bin")


class _Transient(ToolError):
    """What another attempt may mend."""


def send(target: NotifyTarget, message: Notification, environ: Mapping[str, str] = os.environ) -> None:
    """Send `message`; returns when it is taken.

    Raises UsageError where a variable of the target is not set or wrong, and ToolError where the message was not taken
    within TIMEOUT_S. No error shows a value of a variable, nor more of a URL than its host. What a slow name server
    takes does not count: a caller who cannot wait has to call this in a thread."""
    address = target.address(environ)
    ways: dict[str, Callable[[NotifyAddress, Notification, float], None]] = {MAIL: _mail, COMMAND: _run_command}
    way = ways.get(address.kind, _post)
    deadline = time.monotonic() + TIMEOUT_S
    for attempt in range(_TRIES):
        try:
            way(address, message, deadline)
        except _Transient as error:
            if attempt == _TRIES - 1 or time.monotonic() + _PAUSE_S >= deadline:
                raise ToolError(error.message) from None
            time.sleep(_PAUSE_S)
        else:
            return


def _post(address: NotifyAddress, message: Notification, deadline: float) -> None:
    import http.client
    from urllib.error import HTTPError, URLError
    from urllib.request import Request

    url, body = request(address, message, time.time())
    headers = {"Content-Type": "application/json; charset=utf-8", "User-Agent": "dsrun"}
    asked = Request(url, data=body, headers=headers, method="POST")
    left = max(0.05, deadline - time.monotonic())
    try:
        with _opener().open(asked, timeout=left) as answer:
            found = answer.read(_LONGEST_ANSWER)
    except HTTPError as error:
        with error:
            text = f"{address.shown} answered HTTP {error.code}"
        if error.code == _TOO_MANY_REQUESTS or error.code in _SERVER_ERRORS:
            raise _Transient(text) from None
        raise ToolError(text) from None
    except (URLError, TimeoutError, ConnectionError, http.client.HTTPException) as error:
        raise _Transient(f"{address.shown}: {_reason(error)}") from None
    except (OSError, ValueError) as error:
        raise ToolError(f"{address.shown}: {type(error).__name__}") from None
    if why := refusal(services()[address.kind], found):
        raise ToolError(f"{address.shown} refused it: {why}")


def _reason(error: Exception) -> str:
    """Why a connection failed. Not in the exception's own words: some of them have the URL in them."""
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError):
        return "timed out"
    return (reason.strerror if isinstance(reason, OSError) else None) or type(reason).__name__


def _opener() -> "OpenerDirector":
    """urllib's with the proxies of the environment, which follows no redirection: it would turn the POST into a GET,
    and might lead to another host."""
    from urllib.request import HTTPRedirectHandler, build_opener

    class NoRedirect(HTTPRedirectHandler):
        def redirect_request(self, *_: object, **__: object) -> None:
            return None

    return build_opener(NoRedirect)


def _mail(address: NotifyAddress, message: Notification, deadline: float) -> None:
    """Through sendmail, as every mail transfer agent brings it; the recipients are in the mail, not in `ps`."""
    import shutil

    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_SENDMAIL_FOLDERS])
    program = shutil.which("sendmail", path=path)
    if program is None:
        raise ToolError(f"{address.shown}: there is no program sendmail", fix="install a mail transfer agent")
    _run((program, "-i", "-t"), mail(address, message), {}, deadline, "sendmail")


def mail(address: NotifyAddress, message: Notification) -> bytes:
    """The mail as sendmail reads it."""
    found = EmailMessage()
    found["To"] = address.recipient
    found["Subject"] = f"[dsrun] {message.headline}"
    found["Date"] = format_datetime(datetime.fromisoformat(message.time))
    # So that no program answers it (RFC 3834).
    found["Auto-Submitted"] = "auto-generated"
    found.set_content(message.text())
    return found.as_bytes()


# Of a shell that could not run the command (POSIX, Shell Command Language, 2.8.2).
_SHELL_CODES = {126: "cannot be executed", 127: "there is no such command"}


def _run_command(address: NotifyAddress, message: Notification, deadline: float) -> None:
    """The JSON on stdin, the headline in a variable."""
    content = json.dumps(message.as_dict(), ensure_ascii=False).encode("utf-8", "backslashreplace")
    # Users expect pipes and $DSRUN_NOTIFY_TEXT to work. Nothing of the message is a part of the command.
    shell = ("/bin/sh", "-c", address.command)
    _run(shell, content, {variables.NOTIFY_TEXT: message.headline}, deadline, address.argv[0])


def _run(argv: tuple[str, ...], content: bytes, changes: Mapping[str, str], deadline: float, name: str) -> None:
    """Run a program to its end; past the deadline it is killed, with all that it has started."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **changes},
            start_new_session=True,
        )
    except OSError as error:
        raise ToolError(f"{name}: cannot be started: {error.strerror}") from None
    try:
        process.communicate(content, timeout=max(0.05, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise ToolError(f"{name}: did not end within {TIMEOUT_S:g} s") from None
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode:
        raise ToolError(f"{name}: {_SHELL_CODES.get(process.returncode, f'exit code {process.returncode}')}")
