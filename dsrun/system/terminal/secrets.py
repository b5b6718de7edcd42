"""Secrets: what is one, by the name of its key or by its form; commands, settings and text without them.

Every printer, recorder and error passes what it shows through `without_tokens`, `masked` or `masked_values`. What
writes a file for others refuses a command that `masked` changes: a job that gets `***` for a password fails.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

MASK = "***"

# HF_TOKEN, but neither TOKENIZERS_PARALLELISM, MAX_TOKENS nor pad_token_id.
SECRET_VARIABLE = re.compile(
    r"(?<!(?:PAD|EOS|BOS|UNK|SEP|CLS)_)(?<!MASK_)TOKEN(?![A-Z]|_IDS?$|_TYPE)|SECRET|PASSW|CREDENTIAL"
    r"|(^|_)(API_?)?KEY($|_)",
    re.IGNORECASE,
)
# token, hub_token and apiKey, but not pad_token or max_new_tokens.
_SECRET_NAME = re.compile(
    r"((.*_)?(hub|hf|access|auth|api|bearer|wandb|comet|github|session|refresh)_?)?token"
    r"|(.*_)?(access|private|signing)_?key|bearer|cookie|.*(secret|passw|credential|api_?key|authorization).*",
    re.IGNORECASE,
)
# NAME=value, and what Hydra takes: trainer.api_key=value.
_ASSIGNMENT = re.compile(r"(?:[+~]*(?:[A-Za-z_]\w*\.)+)?([A-Za-z_]\w*)=(.+)", re.DOTALL)
# curl's and wget's user:password; elsewhere, as in `docker run -u me:users`, this is something else.
_USER_FLAGS = frozenset({"-u", "--user", "-U", "--proxy-user"})
_WEB = re.compile(r"\b(?:curl|wget|https?)\b")
# Names of variables and places to fill in are no secrets: $TOKEN, `pass show x`, {token}, <token>.
_LITERAL = r"(?![$`{<%])"


@cache
def _forms() -> tuple[re.Pattern[str], ...]:
    """What is a secret wherever it stands; what precedes it, group 1, stays."""
    key = (
        r"[\w.-]{0,64}(?:secret|passw|credential)[\w.-]{0,64}"
        r"|(?:[\w.-]{0,64}[-_.])?(?:\w{0,64}token|api_?key|key|sig|signature|auth|code)"
    )
    header = (
        r"(?:Proxy-)?Authorization|Cookie|X-[\w-]*(?:Key|Token|Secret|Auth)|(?:Private|Access|Auth|Api)-(?:Token|Key)"
    )
    found = (
        # The Hugging Face Hub, GitHub, GitLab, OpenAI and others; JSON web tokens.
        r"()\b(?:hf_|gh[pousr]_|github_pat_|glpat-|sk-|xox[abp]-)[A-Za-z0-9_-]{16,}",
        r"()\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*",
        # The password of a URL, which pathlib writes with one slash, a key in its query; chats' webhooks as a whole.
        r"(:/{1,2})[^\s/@:]*:[^\s/@]++(?=@)",
        rf"(?i:([?&](?:{key})=)){_LITERAL}[^\s&#\"'\\]+",
        r"(\b(?:hooks\.slack\.com/\w+|discord(?:app)?\.com/api/webhooks)/)[^\s\"'\\]+",
        # Headers.
        rf"(?i:((?<![\w-])(?:{header})\s*:\s*+(?:(?:Bearer|Basic|Token|Digest)\s++)?+)){_LITERAL}[^\"'\\\n]+",
        rf"(\bBearer\s+){_LITERAL}[\w.~+/=-]{{6,}}",
    )
    return tuple(map(re.compile, found))


@cache
def _named_forms() -> tuple[re.Pattern[str], ...]:
    """What is a secret under the name of one: of a flag, of a key in an object, also in one that is not quite JSON."""
    text = (
        r"\"(?:[^\"\\]|\\.)+|'(?:[^'\\]|\\.)+|\\\"(?:(?!\\\").)+|\\'(?:(?!\\').)+|[^\s,}\]\"'{\[\\][^,}\]\"'{\[\\\n]*"
    )
    return (
        re.compile(r"(?P<before>(?<![\w-])(?P<name>--[\w.-]+)=)(?P<value>(?:\\?[\"'])?[^\s\"'\\]+)"),
        re.compile(
            rf"(?P<before>[{{,]\s*(?P<quote>\\?[\"']|)(?P<name>[\w.-]+)(?P=quote)\s*:\s*)(?P<value>{text})", re.DOTALL
        ),
    )


@cache
def _user() -> re.Pattern[str]:
    return re.compile(
        rf"((?<![\w-])(?:-u|-U|--user|--proxy-user)[\s=\"',]*(?!\d+:\d+\b)[^\s:\"'\\/=]+:){_LITERAL}[^\s\"'\\]+"
    )


def without_tokens(text: str) -> str:
    """`text` in which everything that reads as a secret is `***`."""
    for form in _forms():
        text = form.sub(rf"\g<1>{MASK}", text)
    for form in _named_forms():
        text = form.sub(_without_value, text)
    return _user().sub(rf"\g<1>{MASK}", text) if _WEB.search(text) else text


def _without_value(found: re.Match[str]) -> str:
    value = found["value"]
    if not is_secret_name(found["name"]) or value.strip().lower() in ("null", "none", "true", "false", "~"):
        return found[0]
    opening = re.match(r"\\?[\"']|", value)
    # Without a quote of its own it gets that of its key, so that JSON stays JSON.
    bare = MASK if (opening and opening[0]) or not (quote := found.groupdict().get("quote")) else quote + MASK + quote
    return found["before"] + (opening[0] if opening else "") + bare


def masked(words: Iterable[str]) -> list[str]:
    """A command for messages and files: values of flags and variables for secrets, and what reads as one, are `***`."""
    return list(_masked(list(words)))


def masked_values(value: Any) -> Any:
    """Settings for messages and files: what stands under the name of a secret, as the api_key of DeepSpeed's comet
    block, and what reads as one, is `***`."""
    if isinstance(value, dict):
        return {k: MASK if v and is_secret_name(str(k)) else masked_values(v) for k, v in value.items()}
    if isinstance(value, str):
        return masked([value])[0]
    if isinstance(value, list):
        command = all(isinstance(each, str) for each in value)
        return masked(value) if command else [masked_values(each) for each in value]
    return value


def unmasked_values(value: Any, original: Any) -> Any:
    """`value`, in which each `***` of `masked_values` is what stands in the same place of `original`, where it does."""
    if isinstance(value, dict) and isinstance(original, dict):
        return {k: unmasked_values(v, original.get(k)) for k, v in value.items()}
    return original if original is not None and value in (MASK, masked_values(original)) else value


def holds_secret(value: Any) -> bool:
    """Whether an option's value, text or several, has a secret in it."""
    words = [value] if isinstance(value, str) else value if isinstance(value, tuple | list) else ()
    return any(masked_values(word) != word for word in words)


def secret_key(value: Any) -> str:
    """The first key of settings under which a secret stands, blocks joined by dots; "" without one."""
    for key, each in value.items() if isinstance(value, dict) else ():
        if each and is_secret_name(str(key)):
            return str(key)
        if inner := secret_key(each):
            return f"{key}.{inner}"
        if masked_values(each) != each:
            return str(key)
    return ""


def split_secrets(words: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """A command without its flags for access tokens, and their values by name, with underscores."""
    kept: list[str] = []
    found: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        flag, equals, value = word.partition("=")
        if not is_secret_flag(flag):
            kept.append(word)
        elif value := value if equals else next(rest, ""):
            found[flag.lstrip("-").replace("-", "_")] = value
    return kept, found


def _masked(words: list[str]) -> Iterator[str]:
    hidden = user = False
    web = any(map(_WEB.search, words))
    for word in words:
        if hidden and not word.startswith("--"):
            yield MASK
            hidden = False
            continue
        shown = _user().sub(rf"\g<1>{MASK}", f"-u {word}")[3:] if user else word
        shown = _user().sub(rf"\g<1>{MASK}", shown) if web else shown
        user = web and word in _USER_FLAGS
        hidden = "=" not in word and is_secret_flag(word)
        yield _masked_word(without_tokens(shown))


def _masked_word(word: str) -> str:
    flag, equals, value = word.partition("=")
    assignment = _ASSIGNMENT.fullmatch(value if word.startswith("-") else word)
    if (inner := _masked_object(word)) or (" " in word and (inner := _masked_line(word))):
        return inner
    if equals and is_secret_flag(flag):
        return f"{flag}={MASK}"
    if assignment and (SECRET_VARIABLE.search(assignment[1]) or is_secret_name(assignment[1])):
        return word[: -len(assignment[2])] + MASK
    return word


def object_in(word: str) -> Any:
    """The JSON object that a word of a command is or ends in, as that of --deepspeed; None without one."""
    start = word.find("{")
    if start < 0:
        return None
    from dsrun.system.files import parse_json  # few words are JSON

    try:
        return parse_json(word[start:])
    except ValueError:
        return None


def _masked_object(word: str) -> str:
    """A word that is or ends in a JSON object; "" where it holds nothing to hide."""
    found = object_in(word)
    shown = masked_values(found)
    return word[: word.find("{")] + json.dumps(shown) if shown != found else ""


def _masked_line(line: str) -> str:
    """A word that is a command itself, as the last one of an ssh command is; "" where it holds nothing to hide."""
    import shlex  # few words are commands

    try:
        words = shlex.split(line)
    except ValueError:
        return ""
    hidden = masked(words) if len(words) > 1 else words
    changed = [(word, shown) for word, shown in zip(words, hidden, strict=True) if word != shown]
    for word, shown in changed:
        line = line.replace(shlex.quote(word), shown)
    if any(word in line for word, _ in changed):  # it was quoted otherwise
        return shlex.join(hidden)
    return line if changed else ""


def is_secret_flag(word: str) -> bool:
    """Whether `word` is a flag that takes an access token, a password or a key."""
    return word.startswith("-") and is_secret_name(word)


def is_secret_name(name: str) -> bool:
    """Whether a key, a flag or a field of this name holds an access token, a password or a key."""
    return bool(_SECRET_NAME.fullmatch(name.rpartition(".")[2].replace("-", "_").strip("_")))
