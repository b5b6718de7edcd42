"""Secrets: what is one, by the name of its key or by its form; commands, settings and text without them.

Every printer, recorder and error passes what it shows through `without_tokens`, `masked` or `masked_values`. What
writes a file for others refuses a command that `masked` changes: a job that gets `***` for a password fails."""

import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from dsrun.datafiles import patterns_beside

MASK = "***"
_USER_FLAGS = frozenset({"-u", "--user", "-U", "--proxy-user", "-b"})
_PATTERNS = patterns_beside(__file__)


@cache
def _table(name: str) -> dict[str, re.Pattern[str]]:
    """The patterns of texts, which take longer to compile than most commands need for the rest."""
    return patterns_beside(__file__, table=name)


def is_secret_name(name: str) -> bool:
    """Whether a key, a flag or a field of this name holds an access token, a password or a key."""
    last = re.split(r"[./]", name)[-1][-100:]
    words = re.sub(r"(?<=[a-z\d])(?=[A-Z])", "_", last).replace("-", "_").strip("_").lower()
    if words == "key" and last != name:  # wandb.key, as Hydra has it
        return is_secret_name("_".join(re.split(r"[./]", name)[-2:]))
    if _PATTERNS["about"].search(words) or _PATTERNS["vocabulary"].search(words):
        return False
    loose = (name.isupper() and last == name and name[0] != "-") or name[:2] in ("x-", "X-")
    return bool(_PATTERNS["name"].search(words) or (loose and _PATTERNS["variable"].search(words)))


def is_secret_variable(name: str, value: str) -> bool:
    """Whether a variable in what others can read is a secret: any but a number, a switch or a path."""
    return is_secret_name(name.upper()) and not _PATTERNS["plain_variable"].fullmatch(value)


def is_secret_query(name: str) -> bool:
    """Whether the value of this name in the query of a URL is a secret."""
    return is_secret_name(f"x-{name}") or bool(_PATTERNS["query"].search(name))


def is_secret_flag(word: str) -> bool:
    """Whether `word` is a flag that takes an access token, a password or a key."""
    return word.startswith("-") and is_secret_name(word)


def _is_secret(name: str, value: Any) -> bool:
    plain = isinstance(value, str | bool) and _PATTERNS["plain"].fullmatch(str(value))
    return bool(value) and is_secret_name(name) and not plain


def without_tokens(text: str) -> str:
    """`text` in which everything that reads as a secret is `***`."""
    for form in _table("forms").values():
        text = form.sub(rf"\g<1>{MASK}", text)
    shown, at = "", 0
    for found in _table("within")["named"].finditer(text):
        if found.start() >= at and (value := _named_value(found, text)):
            opening = re.match(r"\\?[\"']|", value[0])
            # Without a quote of its own it gets that of its key, so that JSON stays JSON.
            quote = "" if (opening and opening[0]) else found["close"] or ""
            shown += text[at : value.start()] + (opening[0] if opening else "") + quote + MASK + quote
            at = value.end()
    text = shown + text[at:]
    web = _PATTERNS["web"].search(text)
    return text[: web.start()] + _table("within")["user"].sub(rf"\g<1>{MASK}", text[web.start() :]) if web else text


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
    value = _table("values")[kind].match(text, found.end())
    if not value or _PATTERNS["plain"].fullmatch(value[0]):
        return None
    if flag and not found["blank"]:
        return value
    # What a sentence quotes, as NAME=SECRET:KEY, is none; nor is the code of a language.
    doubtful = "drawn" if query and name.lower() == "code" else "" if found["colon"] or query else "random"
    return value if not doubtful or _PATTERNS[doubtful].fullmatch(value[0]) else None


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
        web = web or bool(_PATTERNS["web"].search(word))
        line, before = " ".join(words[max(0, at - 7) : at + 1]), words[at - 1] if at else ""
        kept = len(line) - len(word)
        of_user = _table("within")["user"]
        user = web and (of_user.match(word) or (before in _USER_FLAGS and of_user.match(line, kept - len(before) - 1)))
        if hidden and not word.startswith("--") and not _PATTERNS["plain"].fullmatch(word):
            yield MASK
            hidden = False
        else:
            hidden = "=" not in word and is_secret_flag(word)
            found = user or _table("forms")["login"].search(line)
            if found and (user or found.start() < kept <= found.end(1)):  # all within a word is that word's
                yield found.string[len(found.string) - len(word) : found.end(1)] + MASK + found.string[found.end() :]
            else:
                yield _masked_word(word)


def _masked_word(word: str) -> str:
    flag, equals, value = word.partition("=")
    if equals and is_secret_flag(flag) and _is_secret(flag, value):
        return f"{flag}={MASK}"
    assignment = _PATTERNS["assignment"].fullmatch(value if word.startswith("-") else word)
    if assignment and _is_secret(assignment[1], assignment[2]):
        return word[: -len(assignment[2])] + MASK
    if header := _table("within")["header_of_word"].match(word):
        return header[1] + MASK
    found = object_in(word)
    hidden = masked_values(found)
    shown = word[: word.find("{")] + json.dumps(hidden) if hidden != found else ""
    shown = shown or (len(word.split()) > 1 and _masked_line(word)) or word
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
