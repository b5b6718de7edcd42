"""Sends one message to one target, within two seconds: a webhook, sendmail, or a command."""

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
from typing import TYPE_CHECKING

from dsrun.errors import ToolError
from dsrun.notifications.notification import Notification
from dsrun.notifications.notify_target import COMMAND, MAIL, NotifyAddress, NotifyTarget, services
from dsrun.notifications.payloads import refusal, request
from dsrun.system import variables

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
    takes does not count: a caller who cannot wait has to call this in a thread.
    """
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
