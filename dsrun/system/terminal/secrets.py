"""Secrets: what is one, by the name of its key or by its form; commands, settings and text without them.

Every printer, recorder and error passes what it shows through `without_tokens`, `masked` or `masked_values`. What
writes a file for others refuses a command that `masked` changes: a job that gets `***` for a password fails.
"""

import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

MASK = "***"

# What a key, flag, field or variable for a secret is called, in small letters with underscores: token, hub_token and
# api_key, but not pad_token, max_new_tokens or prompt_key.
_SECRET_NAME = re.compile(
    r"(?:secret|passw(?:or)?d|passphrase|credential|api_?key|authorization)s?\d*(?:_|$)|^(?:token|pass|cookie)\d*$"
    r"|(?:^|_)(?:access|private|signing|auth|encryption|wandb|swanlab|openai|comet_ml|account)_?key\d*$|(?:^|_)(?:bearer|jwt|pwd)$"
    r"|(?:^|_)(?:hub|hf|access|auth|api|bearer|wandb|comet|github|gitlab|session|refresh|security|private|slack|bot"
    r"|telegram|discord|my|ms|user|id|jwt|oauth2?|deploy|login|huggingface|modelscope|openai|mlflow|neptune)_?token\d*$"
)
# Variables and HTTP headers are no names of a vocabulary or a data set: there any other token and key is one, too.
_SECRET_VARIABLE = re.compile(
    r"(?:token|pwd)\d*(?:_|$)|(?:^|_)key\d*(?:_|$)|(?:^|_)pass\d*$|(?:^|^x_|(?:^|_)(?:basic|http|proxy|registry|docker)_)auth$"
)
_VOCABULARY = re.compile(
    r"(?:^|_)(?:pad|eos|bos|unk|sep|cls|mask|image|video|audio|special|start|stop|end|max|min|new|num|per|text|content"
    r"|prompt|label|sort|group|cache|primary|foreign|input|output|row|column|answer|question|response|query|reward|data)_(?:token|key)"
)
# What is about a secret, as its file or the variable that holds it.
_ABOUT = re.compile(
    r"_(?:files?|paths?|dir|directory|folder|env|var|variable|ind(?:ex|ices)|idx|len|length|dim|size|counts?|num|number|ids?"
    r"|names?|types?|lr|rate|limit|budget|ur[li]|host|port|field|column|format|prefix|suffix|weight|loss|stdin|mode)$"
)
# In the query of a URL.
_QUERY = re.compile(r"(?:^|[-_])(?:sig|signature|auth|code)$", re.IGNORECASE)
# Names of variables and places to fill in are no secrets: $TOKEN, `pass show x`, {token}, <token>.
_LITERAL = r"(?![$`{<%])"
# Nor are these: switches, numbers, what stands for no key, and paths; a key of AWS, of 40 signs, may look like one.
_NO_AWS_KEY = r"(?![a-z\d/+]{40}[\"'\\]*\Z)"
_SWITCH = r"true|false|null|none|empty|dummy|not-needed|~|\d|\d*\.\d+"
_PLAIN = re.compile(
    rf"[\"'\\]*{_NO_AWS_KEY}(?:[$`{{<%].*|(?:~|\.\.?)/.*|/[\w.-]+/.*|/[a-z_.-]*|{_SWITCH})[\"'\\]*",
    re.DOTALL | re.IGNORECASE,
)
# Not a word of a sentence, nor SECRET:KEY.
_RANDOM = re.compile(r"(?=.*\d)[^-].{5,}|[\"'].*", re.DOTALL)
_DRAWN = re.compile(r"(?=.*\d).{12,}")
# NAME=value, and what Hydra takes: trainer.api_key=value.
_ASSIGNMENT = re.compile(r"[+~]*([A-Za-z_][\w./]*)=(.+)", re.DOTALL)
# Only theirs is user:password; elsewhere, as in `docker run -u me:users`, this is something else.
_WEB = re.compile(r"\b(?:curl|wget)\b")
_USER_FLAGS = frozenset({"-u", "--user", "-U", "--proxy-user", "-b"})
_LOGIN = re.compile(
    r"(\b(?:sshpass|(?:docker|podman)\s+login\s(?:[^\n;&|]{0,200}\s)?)\s*-p[\s=]*|\bwandb\s+login\s+(?:--?[\w-]+\s+)?(?=[\w-]{0,60}\d)(?=[\w-]{12})"
    r"|wandb[\w-]{0,40}[\s=:]+(?=[\da-f]{40}\b))(?![$`{<%-])[^\s\"'\\]+"
)
_HEADER = (
    r"(?i:((?<![\w-])(?:(?:Proxy-)?Authorization|X-[\w-]{0,64}(?:Key|Token|Secret|Auth)|apikey"
    r"|(?:Private|Access|Auth|Api)-(?:Token|Key)"
    r"|Cookie(?=\s*:\s*[\w.-]+=))\s*:\s*+(?:(?:Bearer|Basic|Token|Digest)\s++)?+))"
)


def is_secret_name(name: str) -> bool:
    """Whether a key, a flag or a field of this name holds an access token, a password or a key."""
    last = re.split(r"[./]", name)[-1][-100:]
    words = re.sub(r"(?<=[a-z\d])(?=[A-Z])", "_", last).replace("-", "_").strip("_").lower()
    if words == "key" and last != name:  # wandb.key, as Hydra has it
        return is_secret_name("_".join(re.split(r"[./]", name)[-2:]))
    if _ABOUT.search(words) or _VOCABULARY.search(words):
        return False
    loose = (name.isupper() and last == name and name[0] != "-") or name[:2] in ("x-", "X-")
    return bool(_SECRET_NAME.search(words) or (loose and _SECRET_VARIABLE.search(words)))


def is_secret_variable(name: str, value: str) -> bool:
    """Whether a variable in what others can read is a secret: any but a number, a switch or a path."""
    return is_secret_name(name.upper()) and not re.fullmatch(
        rf"{_NO_AWS_KEY}/.*|{_SWITCH}|\d{{1,5}}", value, re.I | re.S
    )


def is_secret_query(name: str) -> bool:
    """Whether the value of this name in the query of a URL is a secret."""
    return is_secret_name(f"x-{name}") or bool(_QUERY.search(name))


def is_secret_flag(word: str) -> bool:
    """Whether `word` is a flag that takes an access token, a password or a key."""
    return word.startswith("-") and is_secret_name(word)


def _is_secret(name: str, value: Any) -> bool:
    plain = isinstance(value, str | bool) and _PLAIN.fullmatch(str(value))
    return bool(value) and is_secret_name(name) and not plain


@cache
def _forms() -> tuple[re.Pattern[str], ...]:
    """What is a secret wherever it stands; what precedes it, group 1, stays."""
    found = (
        # The Hugging Face Hub, OpenAI: names of runs begin so, too, and have no part of letters and digits or as long.
        r"()\b(?:hf_|sk-)(?=[\w-]{0,40}?(?:(?=[A-Za-z]{0,40}\d)[A-Za-z\d]{12}|[A-Za-z\d]{20}))[\w-]{16,}",
        # GitHub, GitLab, Slack, Stripe, npm, PyPI, Docker, Google, AWS, Replicate; JSON web tokens.
        r"()\b(?:gh[pousr]_|github_pat_|glpat-|xox[abeps]-|xapp-\d|[sr]k_(?:live|test)_|dckr_pat_|pypi-Ag)[\w-]{16,}",
        r"()\b(?:(?:npm_|r8_)[A-Za-z\d]{30,}|AIza[\w-]{30,}|A[KS]IA[A-Z\d]{16})",
        r"()\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*",
        # The password of a URL, which pathlib writes with one slash, or a token alone; chats' webhooks as a whole.
        r"(:/{1,2})[^\s/@:]*:[^\s/\"'<>\\]*(?=@)",
        r"(\bhttps?:/{1,2})(?=[A-Za-z_-]{0,40}\d)[\w-]{12,}(?=@)",
        r"(\b(?:hooks\.slack\.com/\w+|discord(?:app)?\.com/api/webhooks|webhook\.office\.com/\w+"
        r"|(?:feishu\.cn|larksuite\.com)/open-apis/bot/v2/hook|api\.telegram\.org)/)[^\s\"'\\]+",
        rf"{_HEADER}{_LITERAL}[^\"'\\\n]+",
        rf"(\bBearer\s+){_LITERAL}[\w.~+/=-]{{6,}}",
    )
    return (*map(re.compile, found), _LOGIN)


@cache
def _named() -> re.Pattern[str]:
    """A name, and what parts it from its value: `=`, a colon as in JSON and YAML, or the blank behind a flag."""
    return re.compile(
        r"(?P<quote>\\?[\"'])?(?<![\w.-])(?P<name>-{0,2}[A-Za-z_][\w.-]{0,200}+)"
        r"(?:=|(?:\\?[\"']\])?[ \t]++=>?[ \t]++|(?P<close>\\?[\"'])?\s*+(?P<colon>:)\s*+|(?P<blank>[ \t]++))"
    )


@cache
def _value(kind: str) -> re.Pattern[str]:
    string = r"\"(?:[^\"\\]|\\.)+|'(?:[^'\\]|\\.)+|\\\"(?:(?!\\\").)+|\\'(?:(?!\\').)+"
    kinds = {
        "object": rf"{string}|[^\s,}}\]\"'{{\[\\][^,}}\]\"'{{\[\\\n]*",
        "line": rf"{string}|[^\s\"'\\,]+(?=,?\s*(?:\Z|\n|[\"'\\}}]))",
        "query": r"[^\s&#\"'\\]+",
        "quoted": rf"{string}|[^\"'\\]+",
        "word": rf"{string}|[^\s\"'\\]+",
    }
    return re.compile(kinds[kind], re.DOTALL)


@cache
def _user() -> re.Pattern[str]:
    return re.compile(
        r"((?<![\w-])(?:(?:-u|-U|--user|--proxy-user)[\s=\"',]*(?!\d+:\d+\b)[^\s:\"'\\/=]+:"
        rf"|(?:-b|--cookie)[\s=\"',]*\w[\w.-]*=)){_LITERAL}[^\s\"'\\]+"
    )


def without_tokens(text: str) -> str:
    """`text` in which everything that reads as a secret is `***`."""
    for form in _forms():
        text = form.sub(rf"\g<1>{MASK}", text)
    shown, at = "", 0
    for found in _named().finditer(text):
        if found.start() >= at and (value := _named_value(found, text)):
            opening = re.match(r"\\?[\"']|", value[0])
            # Without a quote of its own it gets that of its key, so that JSON stays JSON.
            quote = "" if (opening and opening[0]) else found["close"] or ""
            shown += text[at : value.start()] + (opening[0] if opening else "") + quote + MASK + quote
            at = value.end()
    text = shown + text[at:]
    web = _WEB.search(text)
    return text[: web.start()] + _user().sub(rf"\g<1>{MASK}", text[web.start() :]) if web else text


def _named_value(found: re.Match[str], text: str) -> re.Match[str] | None:
    """The secret behind a name in a text; None where it is none, or the name that of something else."""
    name, start = found["name"], found.start()
    flag, query = name.startswith("-"), text[max(0, start - 1) : start] in ("?", "&", "#")
    if (found["blank"] and not flag) or not (is_secret_query(name) if query else is_secret_name(name)):
        return None
    kind = "query" if query else "quoted" if found["quote"] else "word"
    if found["colon"]:
        before = text[max(0, start - 80) : start].rstrip(" \t-")[-1:]
        kind = "object" if found["close"] or before in ("{", ",", "[") else "line"
        if kind == "line" and ("cookie" in name.lower() or not (found["quote"] or before == "\n")):
            return None
    value = _value(kind).match(text, found.end())
    if not value or _PLAIN.fullmatch(value[0]):
        return None
    # What a sentence quotes, as NAME=SECRET:KEY, is none; nor is the code of a language.
    doubtful = _DRAWN if query and name.lower() == "code" else None if found["colon"] or query else _RANDOM
    if flag and not found["blank"]:
        doubtful = None
    return value if not doubtful or doubtful.fullmatch(value[0]) else None


def masked(words: Iterable[str]) -> list[str]:
    """A command for messages and files: values of flags and variables for secrets, and what reads as one, are `***`."""
    return list(_masked(list(words)))


def masked_values(value: Any) -> Any:
    """Settings for messages and files: what stands under the name of a secret, as the api_key of DeepSpeed's comet
    block, and what reads as one, is `***`."""
    if isinstance(value, dict):
        return {k: MASK if _is_secret(str(k), v) else masked_values(v) for k, v in value.items()}
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
        if _is_secret(str(key), each):
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
    hidden = web = False
    for at, word in enumerate(words):
        web = web or bool(_WEB.search(word))
        line, before = " ".join(words[max(0, at - 7) : at + 1]), words[at - 1] if at else ""
        kept = len(line) - len(word)
        user = web and (_user().match(word) or (before in _USER_FLAGS and _user().match(line, kept - len(before) - 1)))
        if hidden and not word.startswith("--") and not _PLAIN.fullmatch(word):
            yield MASK
            hidden = False
        else:
            hidden = "=" not in word and is_secret_flag(word)
            found = user or _LOGIN.search(line)
            if found and (user or found.start() < kept <= found.end(1)):  # all within a word is that word's
                yield found.string[len(found.string) - len(word) : found.end(1)] + MASK + found.string[found.end() :]
            else:
                yield _masked_word(word)


def _masked_word(word: str) -> str:
    flag, equals, value = word.partition("=")
    if equals and is_secret_flag(flag) and _is_secret(flag, value):
        return f"{flag}={MASK}"
    assignment = _ASSIGNMENT.fullmatch(value if word.startswith("-") else word)
    if assignment and _is_secret(assignment[1], assignment[2]):
        return word[: -len(assignment[2])] + MASK
    if header := re.match(_HEADER + _LITERAL + "(?=.)", word):
        return header[1] + MASK
    shown = _masked_object(word) or (len(word.split()) > 1 and _masked_line(word)) or word
    return without_tokens(f"\n{shown}")[1:]  # at the beginning of a line a name has a value, in a sentence it has none


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
    if len(words) < 2 or (hidden := masked(words)) == words:
        return ""
    return " ".join(each if re.fullmatch(r"[^\s\"'\\]+", each) else shlex.quote(each) for each in hidden)
