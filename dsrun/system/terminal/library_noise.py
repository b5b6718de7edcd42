"""What torch and its companions say of their own affairs, which a user cannot act on: logs keep it, terminals do not
show it."""

import re

_NOISE = [
    # torch._logging: W1127 13:59:34.451000 18041 …/torch/distributed/elastic/…/api.py:1028] Sending process …
    rb"[WEI]\d{4} [\d:.]+ \d+ .*?torch/(distributed|utils/_pytree)\b",
    # Warnings of its C++ code: [W1127 13:59:34.451000123 NNPACK.cpp:57] Could not initialize NNPACK! …
    rb"\[W\d{4} [\d:.]+ [\w.]+\.(cpp|cc|hpp|h):\d+\]",
    rb"\[Gloo\] Rank \d+ is connected",
    rb"Failed to load .*torchao|Skipping import of cpp extensions .*torchao",
    rb"\[\d{4}-\d\d-\d\d [\d:,]+\] \[\w+\] \[real_accelerator\.py:",
]
_LINE = re.compile(rb"(\[rank\d+\]: ?)?(%s)" % b"|".join(_NOISE))
# A warning of Python's, whose second line is the code that warns.
_WARNING = re.compile(rb"\S+/(torch/distributed|torch/utils/_pytree|torchao)\b.*:\d+: \w*Warning: ")
# An unfinished line that may become one of these; anything else, such as a progress bar, is shown at once.
_MAYBE = re.compile(
    rb"(\[rank\d+\]: ?)?([WEI]\d{0,4}$|[WEI]\d{4} |\[[WGr][^\r]*$|\[\d{0,4}$|\[\d{4}-|/[^\r]*$|F$|Fa|S$|Sk)"
)
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
