"""Where messages about a run go: the values of --notify, read and checked. Pure, but for `NotifyTarget.address`, which
reads the variables of the environment that a target names, and for the question whether HOST/PATH is a file.

    https://example.org/runs                    a webhook that takes dsrun's own JSON
    env:SLACK_URL                               the URL in a variable: its host tells the service
    slack+env:CHAT_URL                          the same, of a service on a host that dsrun does not know
    env:DINGTALK_URL?secret_env=DINGTALK_KEY    with the secret that signs messages, in a variable as well
    mailto:someone@example.org                  e-mail, through sendmail
    ./tell.sh --quietly                         a command

A webhook's URL is its password. On the command line all users of the machine could read it, and the run folder would
keep it; so only its variable's name is taken."""

import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from dsrun.datafiles import toml_beside
from dsrun.errors import UsageError, did_you_mean
from dsrun.system.terminal.display import printable
from dsrun.system.terminal.secrets import MASK, is_secret_query, masked

FLAG = "--notify"
MAIL, COMMAND, JSON = "mail", "command", "json"
ALIASES = {"lark": "feishu", "microsoft-teams": "teams"}
SIGNED = ("dingtalk", "feishu")
"""The services that can sign messages."""

_VARIABLE = re.compile(r"env:(?P<name>[A-Za-z_]\w*)(?:\?secret_env=(?P<secret>[A-Za-z_]\w*))?")
_PREFIXED = re.compile(r"(?P<kind>[A-Za-z][A-Za-z-]*)\+(?P<rest>(?:https?|env):.*)", re.DOTALL)
_NAME_ALONE = re.compile(r"[A-Z][A-Z0-9]*_[A-Z0-9_]+")
_ADDRESS = re.compile(r"[^\s@,<>\"]+@[^\s@,<>\"]+")
# HOST/PATH, which reads as a program in a folder.
_WITHOUT_SCHEME = re.compile(r"(?:[a-z0-9-]+\.)+[a-z]{2,}(?::\d+)?/", re.IGNORECASE)
# As long as a part of a path that was drawn at random, such as a UUID; words have no digits.
_RANDOM = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[\w:-]{20,}|[0-9a-f]{16,}", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class WebhookService:
    """One service with webhooks; services.toml explains the keys."""

    title: str
    hosts: tuple[str, ...]
    variable: str
    limit: int
    source: str
    bytes: bool = False
    code: str = ""
    reason: str = ""
    body: Mapping[str, Any] = field(default_factory=dict)


@cache
def services() -> Mapping[str, WebhookService]:
    found = toml_beside(__file__, "services.toml").items()
    return {kind: WebhookService(**{**entry, "hosts": tuple(entry["hosts"])}) for kind, entry in found}


@dataclass(frozen=True, kw_only=True)
class NotifyAddress:
    """Where one message is sent: `url` of a webhook, `recipient` of a mail, `command` for a shell; `secret` signs."""

    kind: str
    url: str = ""
    secret: str = ""
    recipient: str = ""
    command: str = ""

    @property
    def argv(self) -> tuple[str, ...]:
        return tuple(shlex.split(self.command))

    @property
    def shown(self) -> str:
        """What may be printed of it."""
        if self.url:
            parts = urlsplit(self.url)
            return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}/{MASK}"
        return f"mailto:{self.recipient}" if self.recipient else shlex.join(masked(self.argv))


@dataclass(frozen=True, kw_only=True)
class NotifyTarget:
    """A value of --notify: an address, or the name of the variable that holds one; `kind` "" is known by its host.

    `secret_variable` is the variable with the secret that signs messages."""

    text: str
    kind: str = ""
    variable: str = ""
    secret_variable: str = ""
    given: NotifyAddress | None = None

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables that it reads when a message is sent."""
        return tuple(filter(None, (self.variable, self.secret_variable)))

    def address(self, environ: Mapping[str, str]) -> NotifyAddress:
        """Where a message goes now. Raises UsageError, without the values, for variables that are not set or wrong."""
        for name in self.variables:
            if not environ.get(name, "").strip():
                raise UsageError(f"{FLAG} {self.text}: {name} is not set", fix=f"export {name}=…")
        secret = environ.get(self.secret_variable, "").strip()
        if self.given is not None:
            return self.given
        where = f"{FLAG} {self.text}: the value of {self.variable}"
        found = _address(environ[self.variable].strip(), self.kind, where)
        if secret and found.kind not in SIGNED:
            raise UsageError(f"{FLAG} {self.text}: {found.kind} messages are not signed", fix="remove ?secret_env=")
        return replace(found, secret=secret)

    def usable_address(self, environ: Mapping[str, str]) -> NotifyAddress:
        """`address`, on the machine that sends. Raises UsageError also where it has no such program."""
        found = self.address(environ)
        if found.command and shutil.which(found.argv[0]) is None:
            raise UsageError(f"{FLAG} {self.text}: there is no such program here", fix="write its whole path")
        return found


def parse_target(text: str) -> NotifyTarget:
    """The target that a value of --notify names. Raises UsageError for what is none, and for a URL with a secret."""
    text = text.strip()
    prefixed = _PREFIXED.fullmatch(text)
    kind, rest = (_kind(prefixed["kind"]), prefixed["rest"]) if prefixed else ("", text)
    if rest.startswith("env:"):
        variable = _VARIABLE.fullmatch(rest)
        if variable is None:
            raise UsageError(f"{FLAG} env:…: not the name of a variable", fix="write --notify env:SLACK_URL")
        if kind and variable["secret"] and kind not in SIGNED:
            raise UsageError(f"{FLAG} {text}: {kind} messages are not signed", fix="remove ?secret_env=")
        return NotifyTarget(text=text, kind=kind, variable=variable["name"], secret_variable=variable["secret"] or "")
    address = _address(rest, kind, FLAG)
    _refuse_secret(address)
    return NotifyTarget(text=text, kind=address.kind, given=address)


def parse_targets(texts: Sequence[str]) -> tuple[NotifyTarget, ...]:
    """The targets of all values of --notify, each once. Raises UsageError."""
    return tuple(parse_target(text) for text in dict.fromkeys(texts))


def variable_names(words: Sequence[str]) -> set[str]:
    """The variables that the values of --notify in a command line name, for the machine where it will run."""
    if not any(word.partition("=")[0] == FLAG for word in words):
        return set()
    found = (_VARIABLE.search(word) for word in words)
    return {name for match in found if match for name in match.groups() if name}


def _kind(prefix: str) -> str:
    kind = ALIASES.get(prefix.lower(), prefix.lower())
    if kind not in services():
        raise UsageError(f"{FLAG} {prefix}+…: not a service", fix=did_you_mean(kind, services()))
    return kind


def _address(text: str, kind: str, where: str) -> NotifyAddress:
    """What `text` names. Errors begin with `where` and show nothing of a text that may be secret."""
    if prefixed := _PREFIXED.fullmatch(text):
        kind, text = kind or _kind(prefixed["kind"]), prefixed["rest"]
    if re.match(r"https?://", text, re.IGNORECASE):
        return _webhook(text, kind, where)
    if kind:
        raise UsageError(f"{where}: not a URL", fix=f"{kind} takes https://…")
    if text.lower().startswith("mailto:"):
        recipient = unquote(text[len("mailto:") :])
        if not all(_ADDRESS.fullmatch(each.strip()) for each in recipient.split(",")):
            raise UsageError(f"{where} mailto:…: not an e-mail address", fix="write mailto:someone@example.org")
        return NotifyAddress(kind=MAIL, recipient=recipient)
    return _command(text, where)


def _webhook(text: str, kind: str, where: str) -> NotifyAddress:
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    # urllib would complain with the URL in its message.
    if not host or not text.isascii() or re.search(r"[\x00-\x20\x7f]", text):
        raise UsageError(f"{where}: not a URL", fix="write https://HOST/PATH")
    return NotifyAddress(kind=kind or _service_at(host) or JSON, url=text)


def _command(text: str, where: str) -> NotifyAddress:
    if where == FLAG and _NAME_ALONE.fullmatch(text):
        raise UsageError(f"{where} {text}: neither a URL nor a command", fix=f"write --notify env:{text}")
    first = text.partition("/")[0]
    word = text.partition(" ")[0]
    if "://" in word or _service_at(first):
        raise UsageError(f"{where}: not a URL that messages can be sent to", fix="it begins with https://")
    if _WITHOUT_SCHEME.match(word) and not Path(word).exists():
        secret = where != FLAG or _has_secret(urlsplit(f"https://{word}"))
        fix = "it begins with https://" if secret else f"write https://{word}"
        raise UsageError(f"{where}: neither a URL nor a program that exists", fix=fix)
    found = NotifyAddress(kind=COMMAND, command=text)
    try:
        argv = found.argv
    except ValueError as error:
        raise UsageError(f"{where}: not a command: {error}", fix="quote it as in a shell") from None
    if not argv:
        raise UsageError(f"{where}: nothing is named", fix="name a URL, env:NAME, mailto:ADDRESS or a command")
    return found


def _service_at(host: str) -> str | None:
    """The service whose webhooks are at `host`; None for any other host."""
    host = host.lower()
    known = ((kind, name) for kind, each in services().items() for name in each.hosts)
    return next((kind for kind, name in known if host == name or host.endswith(f".{name}")), None)


def _refuse_secret(address: NotifyAddress) -> None:
    """Raise UsageError for a secret where everybody can read it."""
    if address.argv and masked(address.argv) != list(address.argv):
        raise UsageError(
            f"{FLAG} {printable(address.shown)}: the command carries a secret, which everybody can read",
            fix="have the command read it from a variable, or put the command into one: --notify env:NAME",
        )
    if not address.url:
        return
    parts = urlsplit(address.url)
    if address.kind == JSON and not _has_secret(parts):
        return
    name = services()[address.kind].variable
    prefix = f"{address.kind}+" if address.kind not in (JSON, _service_at(parts.hostname or "")) else ""
    what = f"{FLAG} {prefix}{address.shown}: the URL is a secret, which everybody could read on the command line"
    raise UsageError(what, fix=f"put it into a variable, and write --notify {prefix}env:{name}")


def _has_secret(parts: SplitResult) -> bool:
    """Whether a URL carries what looks like a credential: a password, a key in its query, a random part of its path."""
    queries = (key for key, _ in parse_qsl(parts.query, keep_blank_values=True))
    return (
        "@" in parts.netloc
        or any(map(is_secret_query, queries))
        or any(_RANDOM.fullmatch(part) for part in [*parts.path.split("/"), *parts.query.split("=")])
    )
