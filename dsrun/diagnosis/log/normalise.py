"""Logs without what stands before each message: the prefixes that launchers, container runtimes, CI systems and loggers
write, JSON, HTML and escaped line breaks; and the lines as they were written, for what was found in such a log.

No list names the prefixes. They are learned from the log: what stands before a traceback and its frames, or what nearly
all lines begin with, where numbers, times and names with digits may differ."""

import html
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from dsrun.datafiles import toml_beside, with_parts

_DATA = toml_beside(__file__)
_PATTERNS = {name: re.compile(with_parts(text, _DATA["parts"]).encode()) for name, text in _DATA["patterns"].items()}
_KINDS = "|".join(f"(?P<{name}>{text})" for name, text in _DATA["tokens"].items())
_TOKEN = re.compile(rf"{_KINDS}|[A-Za-z_]+|[^\x00-\x7f]+|.".encode())
_GENERAL = {name: f"(?:{text})".encode() for name, text in (_DATA["tokens"] | _DATA["general"]).items()}
_LISTS = {name: frozenset(each.encode() for each in words) for name, words in _DATA["lists"].items()}
_HEADER, _FRAME = b"Traceback (most recent", b'  File "'
# Bytes of a prefix; bytes and lines at the begin and the end of a piece that show what its lines have.
_LONGEST = 200
_SAMPLE = 1 << 15
_ROWS = 200
# So many of these show that there is no prefix.
_FEW = 32
# Lines that must have a prefix of all lines, and pieces in which it may show for the first time.
_SHARE = 0.95
_LOOKS = 2
# Tracebacks of a piece that are looked at, and different prefixes of theirs.
_TRACEBACKS = 100
# Only what is pasted into a post is in Markdown, and no longer.
_POST = 1 << 20
_Row = tuple[bytes, list[re.Match[bytes]]]
"""A line and its parts."""


class LogForm:
    """How a log was written down, learned from the pieces given so far."""

    def __init__(self) -> None:
        self._looks = 0
        self._columns: list[bytes] = []
        self._heads: dict[bytes, bool] = {}
        self._records: list[bytes] = []

    def clean(self, piece: bytes) -> bytes:
        """`piece` without prefixes, and with what was escaped undone.

        Line k stays line k: of a line that becomes several, the others follow a carriage return."""
        text = self._without_json(_without_html(piece))
        for column in self._columns:
            text = _cut(text, column)
        self._looks += 1
        while self._looks <= _LOOKS >= len(self._columns) and (column := _indentation(text) or _prefix(_sample(text))):
            self._columns.append(column)
            text = self._without_json(_cut(text, column))
        text = _without_html(text)
        self._learn_heads(text)
        if heads := b"|".join(prefix for prefix, holds in self._heads.items() if holds):
            text = _cut(text, heads)
        traced = _HEADER in text
        if traced:
            text = _PATTERNS["escaped"].sub(lambda found: _with_returns(found[0]), text)
        if traced or _PATTERNS["glued"].search(text, max(len(text) - _SAMPLE, 0)):
            text = _PATTERNS["glued"].sub(rb"\g<0>\r", text)
        return _PATTERNS["bold"].sub(rb"\r\2", text) if len(text) < _POST else text

    def _without_json(self, text: bytes) -> bytes:
        """`text` with the messages of records in place of those."""
        if not self._records:
            found = next(filter(None, (_PATTERNS["record"].match(b"\n" + line) for line in _sample(text))), None)
            if not found:
                return text
            head = _expression(_tokens(found["head"]), 0)
            self._records = [_PATTERNS[name].pattern.replace(b"HEAD", head) for name in ("simple", "same", "record")]
        text = b"\n" + text
        if not _PATTERNS["special"].search(text):
            text = re.sub(self._records[0], rb"\n\1", text)
        for record in self._records[1:]:
            text = re.sub(record, _message, text)
        return text[1:]

    def _learn_heads(self, text: bytes) -> None:
        """Learns what stands before tracebacks, if one of the next two lines begins so too: loggers mark only one."""
        for head, after in _heads_in(text):
            prefix = _expression(_tokens(head), len(head) - len(head.rstrip(b" ")))
            if prefix not in self._heads and len(self._heads) < _TRACEBACKS:
                lines = text[after : after + _SAMPLE].split(b"\n")
                found = [again[0] if (again := re.match(prefix, line)) else b"" for line in lines]
                if any(found[:2]):
                    self._heads[prefix] = not _mixed([head, *found], [head + _HEADER, *lines])


def _heads_in(text: bytes) -> Iterator[tuple[bytes, int]]:
    """What stands before tracebacks and frames, with where the next line begins; of frames at the end alone."""
    for anchor, begin in ((_HEADER, 0), (_FRAME, max(len(text) - 4 * _SAMPLE, 0))):
        position = text.find(anchor, begin)
        for _ in range(_TRACEBACKS):
            head = text[max(text.rfind(b"\n", 0, position) + 1, position - _LONGEST) : max(position, 0)]
            after = text.find(b"\n", position) + 1
            if after and head.strip() and not _PATTERNS["message"].search(head):
                yield head, after
            if position < 0:
                break
            position = text.find(anchor, position + 1)


def _tokens(line: bytes) -> list[re.Match[bytes]]:
    """The parts of its begin: numbers, times, words, marks, spaces."""
    return list(_TOKEN.finditer(line[:_LONGEST]))


def _general(token: re.Match[bytes]) -> bytes:
    """The expression for what stands in its place in other lines."""
    return _GENERAL[token.lastgroup] if token.lastgroup else re.escape(token[0])


def _letter(token: re.Match[bytes]) -> str:
    """What stands for it in an outline."""
    if token.lastgroup:
        return str(_DATA["outline"][token.lastgroup])
    return (
        "L" if token[0] in _LISTS["levels"] else "w" if token[0][:1].isalpha() else token[0].decode(errors="replace")[0]
    )


def _expression(tokens: Sequence[re.Match[bytes]], trail: int) -> bytes:
    """For a prefix of these tokens, with so many spaces at its end; they are missing before an empty line."""
    parts = [*map(_general, tokens)]
    if trail:
        parts[-1:] = [rb"(?: {%d}|(?=[\r\n]|\Z))" % trail]
    return b" *" * parts[0].startswith(b" ") + b"".join(parts) if parts else b""


def _cut(text: bytes, prefix: bytes) -> bytes:
    """`text` without `prefix`, an expression, at the begin of its lines."""
    return re.sub(rb"\n(?:" + prefix + rb")", b"\n", b"\n" + text)[1:]


def _indentation(text: bytes) -> bytes:
    """The indentation of all lines, less the one that frames have anyway; bars have a single space."""
    if re.search(rb"^\S", text, re.M):
        return b""
    found = re.findall(rb"^([ \t]+)\S", text, re.M)
    least = min(found, key=len, default=b"")
    if least == b" " or not all(each.startswith(least) for each in found):
        return b""
    return least[:-2] if re.search(rb"^%b%b" % (least, _FRAME[2:]), text, re.M) else least


def _sample(text: bytes) -> Sequence[bytes]:
    """Lines at the begin and the end of `text` that are not empty."""
    lines = text[:_SAMPLE].split(b"\n")[:_ROWS] + text[_SAMPLE:][-_SAMPLE:].split(b"\n")[1:][-_ROWS:]
    return [line for line in lines if line.strip()]


def _prefix(lines: Sequence[bytes]) -> bytes:
    """The expression for the prefix that nearly all lines have; empty where they have none."""
    known = _PATTERNS["known"]
    found = [match[0] for match in map(known.match, lines) if match]
    of_tool = known.pattern if lines and len(found) == len(lines) and not _mixed(found, lines) else b""
    # Where nothing shows that all passes through a pipe, a message may begin as the others do.
    if of_tool and not any(_HEADER in line or _FRAME in line for line in lines):
        return of_tool
    few = lines[:: max(len(lines) // _FEW, 1)]
    if len(few) < len(lines) and not _common([(line, _tokens(line)) for line in few]):
        return of_tool
    return _common([(line, _tokens(line)) for line in lines]) or of_tool


def _common(rows: Sequence[_Row]) -> bytes:
    """What nearly all lines begin with, as far as that reads as a prefix."""
    alive, length = rows, 0
    while len(going := [row for row in alive if len(row[1]) > length]) * 2 >= len(rows) > 1:
        ended = [row for row in alive if len(row[1]) == length]
        [(general, count)] = Counter(_general(tokens[length]) for _, tokens in going).most_common(1)
        if count + len(ended) < _SHARE * len(rows) or general in _LISTS["walls"]:
            return _of_outline(going, length)
        alive = ended + [row for row in going if _general(row[1][length]) == general]
        length += 1
    return b""  # lines that are alike as a whole


def _mixed(prefixes: Sequence[bytes], lines: Sequence[bytes]) -> bool:
    """Whether the lines of processes, each with its own prefix, stand within each other's tracebacks: only the prefix
    tells then what belongs together."""
    labels = [_PATTERNS["moment"].sub(b"", prefix) for prefix in prefixes]
    headers = (at for at, line in enumerate(lines[:-1]) if line.startswith(_HEADER, len(prefixes[at])))
    return any(labels[at] != labels[at + 1] and labels[at] in labels[at + 2 : at + _ROWS] for at in headers)


def _of_outline(rows: Sequence[_Row], length: int) -> bytes:
    """The expression for the first `length` tokens of `rows`, or fewer, as far as they read as a prefix."""
    outline = "".join(map(_letter, rows[0][1][:length]))
    while length and outline[length - 1].encode() not in _LISTS["ends"]:
        length -= 1
    if not length:
        return b""
    shape, spaces = outline[:length].encode(), outline[length - 1] == " "
    trail = min(len(tokens[length - 1][0]) for _, tokens in rows) if spaces else 0
    ends = [tokens[length - 1].start() + trail if spaces else tokens[length - 1].end() for _, tokens in rows]
    lines = [line for line, _ in rows]
    if _mixed([line[:end] for line, end in zip(lines, ends, strict=True)], lines):
        told = (at for at in range(length) if len({tokens[at][0] for _, tokens in rows}) > 1)
        return _of_outline(rows, next(at for at in told if outline[at] not in "Ss "))
    bodies = [line[end:] for line, end in zip(lines, ends, strict=True)]
    framed = any(_FRAME in body or body.startswith(_HEADER) for body in bodies)
    # No logger's message begins with spaces, but the lines of what passes through a pipe do.
    piped = framed or any(body.startswith((b" ", b"\t")) for body in bodies)
    if len(rows) < 3 or not piped or not _PATTERNS["framed" if framed else "piped"].match(shape):
        if "L" in outline[:length]:
            return _of_outline(rows, outline.index("L"))
        if len(rows) < 3 or not _PATTERNS["label"].fullmatch(shape):
            marks = _PATTERNS["marks"].match(shape)
            length = len(marks[0].decode()) if marks else 0
            trail = int(outline[length - 1 : length] == " ")
    # Torch's own lines have no space behind the rank, those of Python have one.
    spaced = outline[length - 1 : length] == ":" and not any(body.startswith(_FRAME) for body in bodies)
    spaced &= any(body[:1] == b" " != body[1:2] for body in bodies)
    return _expression(rows[0][1][:length], trail) + b" ?" * spaced


def _without_html(text: bytes) -> bytes:
    """`text` as a page shows it, if it is part of one: where all its special characters are escaped."""
    if not any(map(_PATTERNS["page"].search, (text[:_SAMPLE], text[-_SAMPLE:]))):
        return text
    shown = _PATTERNS["tags"].sub(b"", text)
    return text if b"<" in shown or b'"' in shown else html.unescape(shown.decode(errors="replace")).encode()


def _message(record: re.Match[bytes]) -> bytes:
    """The text of a record behind its level, where that says that something failed, and before its traceback."""
    text = b"\n" + _string(record["text"])
    for special in _PATTERNS["special"].finditer(record[0]):
        level, trace = special.groups()
        text = b"\n%b: %b" % (level, text[1:]) if level else b"%b\r%b" % (text, _string(trace))
    return text


def _string(text: bytes) -> bytes:
    """What a string of JSON says, in one line."""
    try:
        said = json.loads(b'"' + text + b'"')
    except ValueError:
        return _with_returns(text)
    return bytes(said.rstrip("\n").replace("\n", "\r").encode(errors="replace"))


def _with_returns(text: bytes) -> bytes:
    """An escaped text with its line breaks."""
    return text.replace(b"\\\\n", b"\r").replace(b"\\n", b"\r").replace(b'\\"', b'"').replace(b"\\'", b"'")


# Bytes before a line that are kept from one piece to the next.
BEFORE = 6000
_LONGEST_PREFIX = 400
_NEWLINE = re.compile(rb"\n")


def text_before(earlier: bytes, piece: bytes, end: int) -> bytes:
    """The bytes that lead to a place of a piece; `earlier` stands before it."""
    text = piece[max(end - BEFORE, 0) : end]
    return earlier[len(text) :] + text if end < BEFORE else text


class RawLines:
    """The lines of a piece as they were written, which are found by their number; `earlier` stands before it."""

    def __init__(self, piece: bytes, first: int, earlier: bytes = b"") -> None:
        self._piece, self._first, self._earlier = piece, first, earlier
        self._begins: list[int] = []

    def begin(self, number: int) -> int:
        """Where line `number` of the log begins in the piece."""
        if not self._begins:
            self._begins = [0, *(match.end() for match in _NEWLINE.finditer(self._piece))]
        return self._begins[min(number - self._first, len(self._begins) - 1)]

    def before(self, number: int) -> bytes:
        return text_before(self._earlier, self._piece, self.begin(number))

    def end(self, size: int) -> bytes:
        """What stands before the place `size` of the piece."""
        return (self._earlier + self._piece[max(size - BEFORE, 0) : size])[-BEFORE:]

    def line(self, number: int, said: str) -> str:
        """Line `number`, or of one with carriage returns the part that ends with `said`; `said` itself where more was
        undone than something in front of it."""
        begin = self.begin(number)
        end = self._piece.find(b"\n", begin)
        line = self._piece[begin : end if end >= 0 else len(self._piece)]
        at = line.find(said.strip().encode())
        begin = max(line.rfind(b"\r", 0, at) + 1, at - _LONGEST_PREFIX, 0)
        if at < 0 or b'{"' in line[begin:at] or b"\\n" in line[begin:at]:
            return said.strip("\r")
        return line[begin : at + len(said.encode())].decode(errors="replace").strip("\0\r\n")
