"""What SLURM's own notations stand for: time limits, and GPUs in --gpus-per-node and --gres."""

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
MOST = 2**31 - 1
UNLIMITED = ("unlimited", "infinite", "-1")


def gpu_words(text: str) -> tuple[str | None, int] | None:
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
