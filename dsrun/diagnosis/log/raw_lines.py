"""The lines of a log as they were written, for what was found in a log without what stands before its messages."""

import re

# Bytes before a line that are kept from one piece to the next.
BEFORE = 6000
_LONGEST_PREFIX = 400
_NEWLINE = re.compile(rb"\n")


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
        end = self.begin(number)
        text = self._piece[max(end - BEFORE, 0) : end]
        return self._earlier[len(text) :] + text if end < BEFORE else text

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
