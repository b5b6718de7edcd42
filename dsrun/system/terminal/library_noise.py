"""What torch and its companions say of their own affairs, which a user cannot act on: logs keep it, terminals do not
show it."""

import re

from dsrun.datafiles import toml_beside

_TABLE = toml_beside(__file__)
_LINE = re.compile(f"({_TABLE['rank']})?({'|'.join(_TABLE['noise'])})".encode())
_WARNING = re.compile(_TABLE["warning"].encode())
_MAYBE = re.compile(f"({_TABLE['rank']})?({'|'.join(_TABLE['unfinished'])})".encode())
_LONGEST = 4096


class NoiseFilter:
    """Leaves these lines out of the output of programs, piece by piece."""

    def __init__(self) -> None:
        self._rest = b""
        self._is_shown = False
        self._warned = False

    def feed(self, data: bytes) -> bytes:
        """What of `data`, and of what was held back, is to be shown."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        shown = b"".join(line + b"\n" for line in lines if self._shows(line))
        if self._is_shown or not (_MAYBE.match(self._rest) or self._warned) or len(self._rest) > _LONGEST:
            shown, self._rest, self._is_shown = shown + self._rest, b"", bool(self._rest) or self._is_shown
        return shown

    def end(self) -> bytes:
        """The last line, if it has no newline."""
        rest, self._rest = self._rest, b""
        return rest if rest and self._shows(rest) else b""

    def _shows(self, line: bytes) -> bool:
        if self._is_shown:  # its beginning is
            self._is_shown = False
            return True
        if self._warned and line.startswith(b"  "):
            self._warned = False
            return False
        self._warned = bool(_WARNING.match(line))
        return not self._warned and not _LINE.match(line)
