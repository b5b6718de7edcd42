"""Times and sizes as SLURM reads and writes them."""

from __future__ import annotations

import re

# The type of a MIG slice begins with a digit: 3g.20gb.
_GPUS = re.compile(r"(?:(?P<type>[\w.-]*[A-Za-z_][\w.-]*):)?(?P<count>\d+)", re.ASCII)
_TIME = re.compile(
    r"(?:(?P<days>\d+)-(?P<hours>\d+)(?::(?P<minutes>\d+))?(?::(?P<seconds>\d+))?"
    r"|(?:(?P<h>\d+):)?(?P<m>\d+):(?P<s>\d+)|(?P<only>\d+))",
    re.ASCII,
)
# SLURM keeps numbers and seconds in 32 bits; longer ones come out as others, without a word.
MAX_NUMBER = 2**31 - 1
UNLIMITED = ("unlimited", "infinite", "-1")


def parse_gpus(text: str) -> tuple[str | None, int] | None:
    """Type and count of `[TYPE:]N` as --gpus-per-node takes it; None for anything else."""
    match = _GPUS.fullmatch(text.strip())
    return (match["type"], int(match["count"])) if match else None


def time_limit(text: str) -> int | None:
    """Seconds of a time limit as sbatch reads it, 0 for none at all; None for what it does not take.

    The forms are those of sbatch's manual page: minutes, M:SS, H:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS.
    """
    text = text.strip()
    if text.lower() in UNLIMITED:
        return 0
    match = _TIME.fullmatch(text)
    if not match:
        return None
    part = {name: int(value or 0) for name, value in match.groupdict().items()}
    return (
        part["days"] * 86400
        + (part["hours"] + part["h"]) * 3600
        + (part["minutes"] + part["m"] + part["only"]) * 60
        + part["seconds"]
        + part["s"]
    )


_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kmgtp]?)b?", re.IGNORECASE)
# SLURM counts memory in units of 1024 and takes a bare number for MiB.
_MIB = {"k": 1 / 1024, "": 1.0, "m": 1.0, "g": 1024.0, "t": 1024.0**2, "p": 1024.0**3}


def seconds(text: str) -> float | None:
    """A time limit in seconds, infinity for none; None for what is no time, such as "N/A" and "NONE"."""
    limit = time_limit(text)
    return float("inf") if limit == 0 else limit


def clock(amount: float) -> str:
    """Seconds as SLURM prints a limit: 1-12:00:00, 0:30:00; "no limit" for infinity."""
    if amount == float("inf"):
        return "no limit"
    minutes, rest = divmod(round(amount), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{days}-{hours:02}:{minutes:02}:{rest:02}" if days else f"{hours}:{minutes:02}:{rest:02}"


def mib(text: str) -> float | None:
    """A memory size in MiB: 4000, 200G, 1.5T; None for what is none."""
    found = _SIZE.fullmatch(text.strip())
    return float(found[1]) * _MIB[found[2].lower()] if found else None


def gib(amount: float) -> str:
    """MiB as people read them: 62.5 GiB, 500 GiB, 800 MiB."""
    return f"{amount:.0f} MiB" if amount < 1024 else f"{round(amount / 1024, 1):g} GiB"
