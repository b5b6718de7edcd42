"""Values as bash and sbatch read them: quoting, and the notations of times, sizes, arrays, dependencies,
resources, nodes and mail.

Tried against sbatch 22.05. What it does not take is refused with the option's name; its own words are "Job dependency
problem", or for node[2-1] "memory allocation failure"."""

import re
import shlex
from datetime import timedelta

from dsrun.datafiles import toml_beside
from dsrun.errors import UsageError

_CHECKS = toml_beside(__file__)
_INDICES = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?(?:%\d+)?", re.ASCII)


def _is_array(text: str) -> bool:
    parts = text.removeprefix("[").removesuffix("]").split(",")
    found = [_INDICES.fullmatch(word) for word in parts]
    return all(one and int(one[2] or one[1]) >= int(one[1]) and int(one[3] or 1) > 0 for one in found)


def _is_nodes(text: str) -> bool:
    if "/" in text:  # sbatch reads a file of that name
        return True
    from dsrun.system.hostlist import expand_hosts  # few jobs name their nodes

    try:
        return bool(expand_hosts(text))
    except UsageError:
        return False


def check_notation(name: str, text: str, where: str) -> None:
    """Raise UsageError, naming `where`, when sbatch would not read `text` as a value of the field `name`."""
    row = _CHECKS.get(name)
    if row is None:
        return
    if "word" in row:
        is_one = all(re.fullmatch(row["word"], word) for word in re.split(row.get("separator", ","), text))
    else:
        is_one = _is_array(text) if name == "array" else _is_nodes(text)
    if not is_one:
        raise UsageError(f"{where}: {text!r} {row['what']}", fix=row["fix"])


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

    Raises UsageError for a NUL, which no argument can hold."""
    text = str(value)
    if "\0" in text:
        raise UsageError(f"{text!r} contains a NUL character, which no argument can")
    if _ESCAPED.search(text):
        escaped = re.sub(r"[\\'\x01-\x1f\x7f]", lambda found: _NAMED.get(found[0], f"\\x{ord(found[0]):02x}"), text)
        return f"$'{escaped}'"
    # NAME==x would be right, and would look like a comparison.
    return f"'{text}'" if text.startswith("=") and "'" not in text else shlex.quote(text)


def directive_value(value: object, where: str) -> str:
    """`value` as it is written after `--option=` in an #SBATCH line.

    sbatch reads quotes, backslashes and # there by rules of its own: a backslash escapes the next character also
    between single quotes, and nothing can continue a line. Raises UsageError, naming `where`, for what no such line
    can hold."""
    text = str(value)
    if _CONTROL.search(text):
        raise UsageError(f"{where}: {text!r} contains a line break or control character, which no #SBATCH line can")
    if text != text.strip() or not text:
        what = "begins or ends with a blank" if text else "is empty"
        raise UsageError(f"{where}: {text!r} {what}, which SLURM would misread", fix="remove it")
    if len(text.encode("utf-8", "surrogateescape")) > _LONGEST:
        raise UsageError(f"{where}: longer than {_LONGEST} bytes, which sbatch cannot read")
    if _PLAIN.fullmatch(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


# The type of a MIG slice begins with a digit: 3g.20gb.
_GPUS = re.compile(r"(?:(?P<type>[\w.-]*[A-Za-z_][\w.-]*):)?(?P<count>\d+)", re.ASCII)
_TIME = re.compile(
    r"(?:(?P<days>\d+)-(?P<hours>\d+)(?::(?P<minutes>\d+))?(?::(?P<seconds>\d+))?"
    r"|(?:(?P<h>\d+):)?(?P<m>\d+):(?P<s>\d+)|(?P<only>\d+))",
    re.ASCII,
)
_UNITS = {"days": 86400, "hours": 3600, "h": 3600, "minutes": 60, "m": 60, "only": 60, "seconds": 1, "s": 1}
UNLIMITED = ("unlimited", "infinite", "-1")


def parse_gpus(text: str) -> tuple[str | None, int] | None:
    """Type and count of `[TYPE:]N` as --gpus-per-node takes it; None for anything else."""
    match = _GPUS.fullmatch(text.strip())
    return (match["type"], int(match["count"])) if match else None


def time_limit(text: str) -> int | None:
    """Seconds of a time limit as sbatch reads it, 0 for none at all; None for what it does not take.

    The forms are those of sbatch's manual page: minutes, M:SS, H:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS."""
    text = text.strip()
    if text.lower() in UNLIMITED:
        return 0
    match = _TIME.fullmatch(text)
    return sum(_UNITS[name] * int(value or 0) for name, value in match.groupdict().items()) if match else None


_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kmgtp]?)b?", re.IGNORECASE)
# SLURM counts memory in units of 1024 and takes a bare number for MiB.
_MIB = {"k": 1 / 1024, "": 1.0, "m": 1.0, "g": 1024.0, "t": 1024.0**2, "p": 1024.0**3}


def seconds(text: str) -> float | None:
    """A time limit in seconds, infinity for none; None for what is not a time, such as "N/A" and "NONE"."""
    limit = time_limit(text)
    return float("inf") if limit == 0 else limit


def clock(amount: float) -> str:
    """Seconds as SLURM prints a limit: 1-12:00:00, 0:30:00; "no limit" for infinity."""
    if amount == float("inf"):
        return "no limit"
    span = timedelta(seconds=round(amount))
    time = str(span - timedelta(days=span.days))
    return f"{span.days}-{time:0>8}" if span.days else time


def mib(text: str) -> float | None:
    """A memory size in MiB: 4000, 200G, 1.5T; None for what is none."""
    found = _SIZE.fullmatch(text.strip())
    return float(found[1]) * _MIB[found[2].lower()] if found else None


def gib(amount: float) -> str:
    """MiB as people read them: 62.5 GiB, 500 GiB, 800 MiB."""
    return f"{amount:.0f} MiB" if amount < 1024 else f"{round(amount / 1024, 1):g} GiB"
