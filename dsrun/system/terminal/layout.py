"""How text fits a terminal: lines that end between words, tables whose rows fold. Nothing is cut and nothing left out.

Elsewhere (a file, a pipe, a log) each item is one line of any length, which grep finds.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import IO, Any

from dsrun.system.terminal.display import cells, padded

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
