"""What people read: text without control characters; figures, sizes and durations; and how text fits a terminal: lines
that end between words, tables whose rows fold. Nothing is cut and nothing left out.

Elsewhere (a file, a pipe, a log) each item is one line of any length, which grep finds."""

import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import IO, Any

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
    clipboard, or pretend to be further lines."""
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


# Where a line may end: after a space, but not between a number and its unit; and beside a Chinese character, but not
# before a mark that closes or after one that opens.
_WIDE, _OPENING, _CLOSING = "⺀-鿿豈-\ufaff！-～", "（「《", "、。，：；！？）」》"
_BREAK = re.compile(
    rf"(?<=\s)(?=\S)(?!(?<=\d )(?:m?s|min|h|days?|[KMGT]?i?B(?:/s)?|tokens/s)\b)"
    rf"|(?<=[{_WIDE}])(?<![{_OPENING}])(?=[^\s{_CLOSING}])"
    rf"|(?<=[^\s{_OPENING}])(?=[{_WIDE}])(?![{_CLOSING}])"
)
# What stays on one line of a command: what is quoted, and a flag with its value.
_WHOLE = re.compile(r"'[^']*'|\"[^\"]*\"|--[\w-]+ (?!-)")
_GAP = "  "
_GAPS = re.compile(r"\S {2,}(?=\S)")
# A text that has less room than this beside something goes below it.
NARROWEST = 30


def terminal_width(stream: IO[Any] | None) -> int | None:
    """The columns of the terminal that `stream` writes to, or of COLUMNS; None where it writes to no terminal."""
    with suppress(ValueError):  # a closed stream
        if stream is not None and stream.isatty():
            return columns_of(stream)
    return None


def columns_of(stream: IO[Any] | None) -> int:
    """The columns of COLUMNS, else of the terminal behind `stream`, else 80. shutil, which has this too, brings every
    compression."""
    with suppress(KeyError, ValueError):
        if (columns := int(os.environ["COLUMNS"])) > 0:
            return columns
    # A closed stream, and one that is not a terminal.
    with suppress(ValueError, OSError, AttributeError):
        return os.get_terminal_size(stream.fileno()).columns or 80  # type: ignore[union-attr]
    return 80


def wrapped(text: str, width: int, hang: int = 0) -> list[str]:
    """The lines of `text` in so many columns, all but the first `hang` columns in. A longer word, such as a path or an
    address, stays whole; Chinese breaks anywhere, but before a punctuation mark."""
    if len(_GAPS.findall(text.strip())) > 1:  # fields: a name stays with its value, where there is room for both
        fields = _broken(re.sub(r"(?<=\S) (?=\S)", "\0", text), width, hang)
        if max(map(cells, fields)) <= width:
            return [each.replace("\0", " ") for each in fields]
    return _broken(text, width, hang)


def _broken(text: str, width: int, hang: int) -> list[str]:
    lines, line = [], ""
    for piece in _BREAK.split(text):
        if line.strip() and cells(line + piece.rstrip()) > width:
            lines.append(line.rstrip())
            line = " " * hang
        line += piece
    return [*lines, line.rstrip()]


def fitted(text: str, width: int | None, *, hang: int | None = None) -> str:
    """`text` in lines of so many columns; what does not fit into one goes on `hang` columns in, by default two further
    than it begins. None: as it is."""
    if width is None:
        return text
    deep = hang if hang is None or width - hang >= NARROWEST else min(hang, 4)
    lines = ((each, len(each) - len(each.lstrip()) + 2 if deep is None else deep) for each in text.split("\n"))
    return "\n".join(made for line, inset in lines for made in wrapped(line, width, inset))


def command_text(command: str, width: int | None, *, comment: str = "") -> str:
    """A shell's command, in lines that it reads as one; the comment behind it, or above where there is no room."""
    line = f"{command}  # {comment}" if comment else command.rstrip()
    if width is None or cells(line) <= width:
        return line
    whole = _WHOLE.sub(lambda found: found[0].replace(" ", "\0"), command.strip())
    rows = wrapped(whole, width - 2, hang=4)
    above = [f"# {each}" for each in wrapped(comment, width - 2)] if comment else []
    return "\n".join([*above, " \\\n".join(rows).replace("\0", " ")])


def aligned_rows(rows: Sequence[Sequence[str]], width: int | None = None, *, head: bool = True) -> Iterator[str]:
    """A line for each row of cells, with their columns aligned. What is wider than `width` folds: a last column of
    texts is wrapped in its place where that has room, else the columns that do not fit stand below each row, by their
    names in the first one, if that is a `head`."""
    widths = [max(map(cells, column)) for column in zip(*rows, strict=True)]
    ends = [sum(widths[: at + 1]) + len(_GAP) * at for at in range(len(widths))]
    beside = ends[-1] - widths[-1] if ends else 0
    wraps = width is not None and bool(ends) and ends[-1] > width and width - beside >= NARROWEST
    fits = len(widths) if width is None or wraps else max(1, sum(end <= width for end in ends))
    for number, row in enumerate(rows):
        line = _GAP.join(padded(cell, size) for cell, size in zip(row[:fits], widths, strict=False)).rstrip()
        yield from wrapped(line, width, beside) if wraps and width else [line]
        names = [f"{name.lower() if name.isupper() else name} " if head else "" for name in rows[0][fits:]]
        below = ", ".join(name + cell for name, cell in zip(names, row[fits:], strict=True) if cell)
        if below and not (head and number == 0):
            yield from wrapped(f"    {below}", width or 0, 4)
