"""What people read: text without control characters; figures, sizes and durations."""

import math
import re
from collections.abc import Callable

from dsrun.messages import Message

NotePrinter = Callable[[str], None]
"""Prints a line about what is being done."""
# From it on a figure is written with an exponent.
_HUGE = 1e15
# Thousands of years: a damaged number, or a mistyped one.
_ABSURD_S = 1e11
UNKNOWN = "unknown"

# C0 and C1 control characters and DEL; marks that turn the direction of text, so that it reads as something else.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")


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
    """Seconds as far as it matters: 45 s, 12 min, 3.4 h, 2.1 days; unknown for more than a calendar holds."""
    if not seconds < _ABSURD_S:
        return UNKNOWN
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
