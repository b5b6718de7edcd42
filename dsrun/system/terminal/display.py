"""What people read: text without control characters and access tokens; figures, sizes and durations."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from dsrun.messages import Message

NotePrinter = Callable[[str], None]
"""Prints a line about what is being done."""
MASK = "***"
# From it on a figure is written with an exponent.
_HUGE = 1e15

# C0 and C1 control characters and DEL; marks that turn the direction of text, so that it reads as something else.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")

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
# Where a line may end: after a space, and beside a Chinese character, but not before a mark that closes or after one
# that opens.
_WIDE, _OPENING, _CLOSING = "⺀-鿿豈-\ufaff！-～", "（「《", "、。，：；！？）」》"
_BREAK = re.compile(
    rf"(?<=\s)(?=\S)|(?<=[{_WIDE}])(?<![{_OPENING}])(?=[^\s{_CLOSING}])"
    rf"|(?<=[^\s{_OPENING}])(?=[{_WIDE}])(?![{_CLOSING}])"
)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.+)", re.DOTALL)


def printable(text: str, *, keep: str = "\t") -> str:
    """`text` for a terminal: colours are left out, and all other control characters but `keep` become visible escapes.

    For what a file, a log or another machine says, which could otherwise move the cursor, set the title, write to the
    clipboard, or pretend to be further lines.
    """
    plain = _COLOURS.sub("", text).encode("utf-8", "backslashreplace").decode("utf-8")  # halves of surrogate pairs
    return _CONTROL.sub(lambda match: match[0] if match[0] in keep else _escaped(match[0]), plain)


def _escaped(character: str) -> str:
    known = {"\n": r"\n", "\r": r"\r"}
    code = ord(character)
    return known.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


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


def counted(number: int, noun: str) -> Message:
    """`1 GPU`, `2 GPUs`, `1,000 files`; the noun's plural ends in s. Its template is the plural."""
    return Message.reads(f"{number:,} {noun}{'' if number == 1 else 's'}", f"{{number:,}} {noun}s", {"number": number})


def cells(text: str) -> int:
    """The columns that `text` takes on a terminal, where a Chinese character takes two."""
    if text.isascii():
        return len(text)
    import unicodedata

    return len(text) + sum(unicodedata.east_asian_width(character) in "WF" for character in text)


def padded(text: str, width: int) -> str:
    """`text` with the spaces that make it as wide as so many columns."""
    return text + " " * (width - cells(text))


def aligned_rows(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A line for each row of cells, with their columns aligned."""
    widths = [max(map(cells, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(padded(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip()


def wrapped(text: str, width: int) -> list[str]:
    """The lines of `text` in so many columns. A command, a path or an address stays whole; Chinese breaks anywhere, but
    before a punctuation mark."""
    lines, line = [], ""
    for piece in _BREAK.split(text):
        if line and cells(line + piece.rstrip()) > width:
            lines.append(line.rstrip())
            line = ""
        line += piece
    return [*lines, line.rstrip()]


def figure(value: float, digits: int = 4) -> str:
    """A value with so many significant digits: 0.03067, 43,214, 1.2e-05."""
    try:
        value = float(value)
    except OverflowError:
        value = math.inf if value > 0 else -math.inf
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "−∞"
    if value and not 1e-4 <= abs(value) < _HUGE:
        return f"{value:.{digits - 1}g}"
    if abs(value) < 1:
        return f"{value:.{digits}g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def size_text(count: float) -> str:
    """Bytes: 512 B, 4.7 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def utc_text(at: float | None = None) -> str:
    """A time in seconds since the epoch, by default now: ISO 8601 in UTC, "2026-11-21T04:48:00.123Z"."""
    from datetime import UTC, datetime  # most commands write no time

    moment = datetime.now(UTC) if at is None else datetime.fromtimestamp(at, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def duration(seconds: float) -> str:
    """Seconds as far as it matters: 45 s, 12 min, 3.4 h, 2.1 days."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


def precise_duration(seconds: float) -> str:
    """What took so many seconds, as `duration`, but short times in three digits: 85.3 ms, 0.25 s, 12.4 s."""
    if 0 < seconds < 0.0995:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 99.5 else duration(seconds)
