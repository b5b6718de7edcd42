"""Secrets: what is one, by the name of its key or by its form; commands, settings and text without them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

MASK = "***"


# HF_TOKEN, but neither TOKENIZERS_PARALLELISM nor MAX_TOKENS.
SECRET_VARIABLE = re.compile(r"TOKEN(?![A-Z])|SECRET|PASSW|CREDENTIAL|(^|_)(API_?)?KEY($|_)", re.IGNORECASE)


# --token and --hub_token, but not --pad-token or --max-new-tokens.
_SECRET_FLAG = re.compile(
    r"-*((.*_)?(hub|hf|access|auth|api|bearer|wandb|comet|github|session)_)?token|.*(secret|passw|credential|api_?key).*",
    re.IGNORECASE,
)


# Tokens of the Hugging Face Hub, GitHub, GitLab, OpenAI and others, wherever they stand; the password of a URL.
_TOKENS = re.compile(
    r"\b(?:hf_|gh[pousr]_|github_pat_|glpat-|sk-|xox[abp]-)[A-Za-z0-9_-]{16,}|(?<=://)[^\s/@]*:[^\s/@]+(?=@)"
)


_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.+)", re.DOTALL)


def without_tokens(text: str) -> str:
    """`text` in which everything that reads as an access token or as the password of a URL is `***`."""
    return _TOKENS.sub(MASK, text)


def masked(words: Iterable[str]) -> list[str]:
    """A command for messages and files: values of flags and variables for access tokens, and what reads as a token, are
    `***`."""
    return list(_masked(words))


def masked_values(value: Any) -> Any:
    """Settings for messages and files: what stands under the name of an access token or key is `***`, as the api_key of
    DeepSpeed's comet block."""
    if isinstance(value, dict):
        return {k: MASK if v and is_secret_flag(f"--{k}") else masked_values(v) for k, v in value.items()}
    return [masked_values(each) for each in value] if isinstance(value, list) else value


def unmasked_values(value: Any, original: Any) -> Any:
    """`value`, in which each `***` of `masked_values` is what stands in the same place of `original`, where it does."""
    if isinstance(value, dict) and isinstance(original, dict):
        return {k: unmasked_values(v, original.get(k)) for k, v in value.items()}
    return original if value == MASK and original is not None else value


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


def _masked(words: Iterable[str]) -> Iterator[str]:
    hidden = False
    for word in words:
        flag, equals, value = word.partition("=")
        assignment = _ASSIGNMENT.fullmatch(value if word.startswith("-") else word)
        if hidden and not word.startswith("--"):
            yield MASK
            hidden = False
            continue
        hidden = is_secret_flag(flag) and not equals
        if (inner := _masked_object(word)) or (" " in word and (inner := _masked_line(word))):
            yield inner
        elif equals and is_secret_flag(flag):
            yield f"{flag}={MASK}"
        elif assignment and SECRET_VARIABLE.search(assignment[1]):
            yield word[: -len(assignment[2])] + MASK
        else:
            yield without_tokens(word)


def _masked_object(word: str) -> str:
    """A word that is or ends in a JSON object, as of --deepspeed; "" where it holds nothing to hide."""
    start = word.find("{")
    if start < 0:
        return ""
    from dsrun.system.files import parse_json  # few words are JSON

    try:
        found = parse_json(word[start:])
    except ValueError:
        return ""
    shown = masked_values(found)
    return word[:start] + json.dumps(shown) if shown != found else ""


def _masked_line(line: str) -> str:
    """A word that is a command itself, as the last one of an ssh command is; "" where it holds nothing to hide."""
    import shlex  # few words are commands

    try:
        words = shlex.split(line)
    except ValueError:
        return ""
    hidden = masked(words) if len(words) > 1 else words
    for word, shown in zip(words, hidden, strict=True):
        if word != shown:
            line = line.replace(shlex.quote(word), shown)
    return line if hidden != words else ""


def is_secret_flag(word: str) -> bool:
    """Whether `word` is a flag that takes an access token, a password or a key."""
    return word.startswith("-") and bool(_SECRET_FLAG.fullmatch(word.replace("-", "_").strip("_")))
