"""How a value is written so that it arrives as it is: in a shell command, and in a line that sbatch reads."""

from __future__ import annotations

import re
import shlex

from dsrun.errors import UsageError

# Written as escapes so that a word stays on one line of the script; sbatch refuses a script with \r\n outright.
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# In $'…' nothing is expanded either, and a reader (or shellcheck) does not wonder whether it was meant to be.
_ESCAPED = re.compile(r"[\x00-\x1f\x7f$`]")
_NAMED = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_PLAIN = re.compile(r"[^\s\"'\\#]+")
# sbatch copies a word of a directive into a buffer of BUFSIZ bytes (src/sbatch/opt.c).
_LONGEST = 4096


def shell_quote(value: object) -> str:
    """`value` as one word of a bash script, which stands for exactly this text and runs nothing.

    Raises UsageError for a NUL, which no argument can hold.
    """
    text = str(value)
    if "\0" in text:
        raise UsageError(f"{text!r} holds a NUL character, which no argument can")
    if _ESCAPED.search(text):
        return "$'" + re.sub(r"[\\'\x01-\x1f\x7f]", lambda found: _escape(found[0]), text) + "'"
    # NAME==x would be right, and would look like a comparison.
    return f"'{text}'" if text.startswith("=") and "'" not in text else shlex.quote(text)


def _escape(character: str) -> str:
    return _NAMED.get(character) or f"\\x{ord(character):02x}"


def directive_value(value: object, where: str) -> str:
    """`value` as it stands behind `--option=` in an #SBATCH line.

    sbatch reads quotes, backslashes and # there by rules of its own: a backslash escapes the next character also
    between single quotes, and nothing can continue a line. Raises UsageError, naming `where`, for what no such line
    can hold.
    """
    text = str(value)
    if _CONTROL.search(text):
        raise UsageError(
            f"{where}: {text!r} holds a line break or control character, which no #SBATCH line can"
        )
    if text != text.strip() or not text:
        what = "begins or ends with a blank" if text else "is empty"
        raise UsageError(f"{where}: {text!r} {what}, which SLURM would misread", fix="leave it away")
    if len(text.encode("utf-8", "surrogateescape")) > _LONGEST:
        raise UsageError(f"{where}: longer than {_LONGEST} bytes, which sbatch cannot read")
    if _PLAIN.fullmatch(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
