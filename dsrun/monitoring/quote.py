"""What a training would take, by the steps of a run that has been measured: hours, GPU hours, energy and cost."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dsrun.errors import UsageError
from dsrun.runs.reader import RunHistory, read_history
from dsrun.runs.records import LedgerRecord, finite, seconds_of, whole

CPU = "CPU"
"""The kind of a run without GPUs."""
CHECKED_S = 60.0
"""A quote of so many of a run's first seconds is held against the rest of it."""
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """Tokens a second from the first logged step to the last, saves and evaluations between them included.

    `tokens` and `seconds` are those between the two, `epoch` the tokens of one (None where nobody knows), `watts` what
    all GPUs drew together as the run was last looked at and `limit_watts` what they may draw; None without GPUs."""

    gpus: int
    kind: str
    tokens: int
    seconds: float
    epoch: float | None
    watts: float | None
    limit_watts: float | None
    check: float | None
    """How much longer the rest of the run took than its first seconds foretold, as a share; None for a short run."""

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


@dataclass(frozen=True, kw_only=True)
class Quote:
    """What `tokens` take at the speed of `run`; `kwh` from the power measured to the most the GPUs may draw."""

    run: MeasuredRun
    tokens: float

    @property
    def hours(self) -> float:
        return self.tokens / self.run.tokens_per_s / 3600

    @property
    def gpu_hours(self) -> float | None:
        """None of a run on CPUs."""
        return None if self.run.kind == CPU else self.hours * self.run.gpus

    @property
    def kwh(self) -> tuple[float, float] | None:
        if self.run.watts is None or self.run.limit_watts is None:
            return None
        return (self.hours * self.run.watts / 1000, self.hours * self.run.limit_watts / 1000)


def measured(folder: Path) -> MeasuredRun:
    """The speed of the run in `folder`. Raises UsageError for one that has not logged two steps with their tokens."""
    history = read_history(folder)
    rows = _last_attempt(history.steps)
    if len(rows) < 2:
        raise UsageError(f"{folder} has not logged two steps with their tokens", fix="let it train for a minute")
    first, last = rows[0], rows[-1]
    watts, limits = _power(history)
    names = history.run.get("gpus")
    kinds = names if isinstance(names, list) else []
    epochs = finite(last.get("epoch"))
    return MeasuredRun(
        gpus=whole(history.run.get("world_size")) or 1,
        kind=str(kinds[0]) if kinds else CPU,
        tokens=_tokens(last) - _tokens(first),
        seconds=_seconds(last) - _seconds(first),
        epoch=_tokens(last) / epochs if epochs else None,
        watts=watts,
        limit_watts=limits,
        check=_check(rows),
    )


def number_of_tokens(text: str) -> int:
    """A number as 10B, 1.5T or 300000. Raises UsageError for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmbt]?)", text.strip().replace("_", ""), re.IGNORECASE)
    if not found or float(found[1]) == 0:
        raise UsageError(f"--tokens {text} is not a number of tokens", fix="write 300000, 10B or 1.5T")
    return round(float(found[1]) * _UNITS[found[2].lower()])


def _tokens(row: LedgerRecord) -> int:
    return whole(row.get("tokens")) or 0


def _seconds(row: LedgerRecord) -> float:
    return seconds_of(row) or 0.0


def _last_attempt(steps: Sequence[LedgerRecord]) -> list[LedgerRecord]:
    """The rows since the ranks started last, whose clock begins anew."""
    rows = [row for row in steps if _tokens(row) and seconds_of(row) is not None]
    began = [at for at in range(1, len(rows)) if _elapsed(rows[at]) < _elapsed(rows[at - 1])]
    return rows[began[-1] if began else 0 :]


def _elapsed(row: LedgerRecord) -> float:
    return finite(row.get("elapsed")) or 0.0


def _check(rows: Sequence[LedgerRecord]) -> float | None:
    start = rows[0]
    early = [row for row in rows[1:] if _seconds(row) - _seconds(start) <= CHECKED_S]
    if not early or early[-1] is rows[-1] or _seconds(rows[-1]) - _seconds(start) < 2 * CHECKED_S:
        return None
    turn, end = early[-1], rows[-1]
    speed = (_tokens(turn) - _tokens(start)) / (_seconds(turn) - _seconds(start))
    return (_seconds(end) - _seconds(turn)) / ((_tokens(end) - _tokens(turn)) / speed) - 1


def _power(history: RunHistory) -> tuple[float | None, float | None]:
    gpus = [gpu for node in history.nodes for gpu in node.gpus]
    drawn, limits = [gpu.power_w for gpu in gpus], [gpu.power_limit_w for gpu in gpus]
    if not gpus or None in drawn or None in limits:
        return None, None
    return sum(filter(None, drawn)), sum(filter(None, limits))
