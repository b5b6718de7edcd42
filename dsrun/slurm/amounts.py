"""Times and sizes as SLURM reads and writes them."""

from __future__ import annotations

import re

from dsrun.slurm.sizes import time_limit

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
