"""The figures in the logs of other trainers, line by line.

Known are the dicts of the Hugging Face Trainer with its tqdm bar, DeepSpeed's own lines, Megatron-LM's, torchtitan's
and nanoGPT's, JSON lines, and whatever else writes "step" and "loss" before numbers."""

import ast
import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from dsrun.datafiles import patterns_beside, toml_beside
from dsrun.runs.records import LedgerRecord, finite
from dsrun.system.files import parse_json

FIGURES = patterns_beside(__file__, "formats.toml", table="figures")
_PATTERNS = patterns_beside(__file__, "formats.toml")
KEYS: dict[str, list[str]] = toml_beside(__file__, "formats.toml")["keys"]
_CONTROL = re.compile(r"\x1b\[[0-9;:]*[A-Za-z]")
MOST_STEPS = 20_000
_LONGEST = 8192
"""Of a longer line no figures are read: to look for them takes long, and text has none."""
_MOST = float(1 << 53)
_LARGEST = 1e39
"""Beyond what 32 bits hold: no figure, and times of it could not be written down."""


class TrainerLog:
    """What the lines that were fed to it tell: `steps` and `evaluations` as in a RunHistory, and the last figures."""

    def __init__(self) -> None:
        self.steps: list[LedgerRecord] = []
        self.evaluations: list[LedgerRecord] = []
        self.step: int | None = None
        self.max_steps: int | None = None
        self.step_s: float | None = None
        self.figures: dict[str, float] = {}
        self.has_ended = False
        self._epochs: float | None = None
        self._first_epoch = 1
        self._epoch_step: tuple[int, float] | None = None
        self._steps_are_of_epochs: bool | None = None
        self._bar: tuple[int, int] | None = None
        self._total_is_sure = False
        self._step_is_due = self._in_traceback = False

    @property
    def loss_is_finite(self) -> bool:
        """Whether the last loss, if any, is a number."""
        return math.isfinite(self.figures.get("loss", 0.0))

    def feed(self, lines: Iterable[str], now: str | None = None) -> None:
        """Take further lines in, also such as a bar rewrites with carriage returns. `now` (ISO 8601) is the time of
        lines that bear none."""
        for line in lines:
            for piece in line.split("\r"):
                if self._is_quoted(piece):
                    continue
                if len(piece) <= _LONGEST and _PATTERNS["interesting"].search(piece):
                    # Whatever a program writes: a line that only looks like one of a trainer is passed over.
                    with suppress(ValueError, TypeError, ArithmeticError):
                        self._take(_CONTROL.sub("", piece), now)

    def _is_quoted(self, line: str) -> bool:
        """Whether a line is one of a traceback, whose source and exception have names and numbers, too."""
        is_frame = bool(_PATTERNS["frame"].match(line))
        quoted, source = is_frame or self._in_traceback, line.partition("]: ")[2] if line.startswith("[rank") else line
        self._in_traceback = is_frame or (quoted and source.startswith(" "))
        return quoted

    def _take(self, line: str, now: str | None) -> None:
        now = _time_of(line) or now
        if bar := _PATTERNS["bar"].search(line):
            has_step = self._take_bar(bar, line[: bar.start()])
            if has_step is not None:
                self._take_postfix(bar["times"], now, has_step=has_step)
            line = line[bar.end() :]
        if (values := _values(line)) is not None:
            self._take_values(values, now)
        elif found := _PATTERNS["epochs"].search(line):
            self._epochs = float(found[1].replace(",", ""))
        else:
            self._take_text(line, now)
        self.has_ended = bool(_PATTERNS["end"].search(line)) or (self.has_ended and "loss" not in line)

    def _take_bar(self, bar: re.Match[str], name: str) -> bool | None:
        """A tqdm bar: that of training has no other name, and the total of the first one, or the one known. Returns
        whether it tells the step of training; None of another bar."""
        step, total = _count(bar["step"]), _count(bar["total"])
        what = name.strip().lower().rstrip(":").strip()
        if step is None or total is None or (what and not re.search(r"train|step|epoch|iter", what)):
            return None
        if "epoch" in what:
            return False  # its steps begin again with every epoch
        self._bar = (step, total)
        if self.max_steps is None:
            self.max_steps = total
        if total != self.max_steps:
            return None
        self.step = max(step, self.step or 0)
        if self._step_is_due:
            # tqdm draws its bar anew below what is written above it, and bars are rarer than steps.
            self._step_is_due = False
            self.steps[-1] = {**self.steps[-1], "step": self.step}
        if (found := _PATTERNS["bar_rate"].search(bar["times"])) and (rate := _number(found[1])):
            self.step_s = rate if found[2] == "s/it" else 1 / rate
        return True

    def _take_postfix(self, text: str, now: str | None, *, has_step: bool) -> None:
        """What set_postfix adds to a bar, as Lightning does. One without a step has none that is known otherwise."""
        found = {key: number for key in ("loss", "lr", "grad_norm") if (number := _figure(key, text)) is not None}
        if "loss" in found and (has_step or self.step is None):
            self._add(found, self.step, now)

    def _take_values(self, values: Mapping[str, Any], now: str | None) -> None:
        """A dict of the Trainer, or a JSON line."""
        found = {key: value for key, names in KEYS.items() if (value := _first(values, names)) is not None}
        numbers = ((key, _number(value)) for key, value in values.items() if key.startswith("eval"))
        evaluated = {key: number for key, number in numbers if number is not None}
        self.max_steps = _count(found.pop("max_steps", None)) or self.max_steps
        # The Trainer writes a loss of 0 in place of NaN.
        names = KEYS["grad_norm"] if found.get("loss") == 0 else () if "loss" in found else KEYS["loss"]
        if any(_is_broken(values.get(name)) for name in names):
            found["loss"] = math.nan
        step = self._step_of(found)
        if evaluated and "loss" not in found:
            if step is not None:
                self.evaluations.append({"step": step, **evaluated})
        elif "train_runtime" not in values:
            self._add(found, step, now)
            self._step_is_due = "loss" in found and "step" not in found and step is not None and self._bar is not None

    def _step_of(self, found: Mapping[str, float]) -> int | None:
        if "step" in found:
            return _count(found["step"])
        if self._epochs and self.max_steps and "epoch" in found:
            return _count(round(found["epoch"] / self._epochs * self.max_steps))
        if self._bar and "loss" in found and not self._total_is_sure:
            # Whatever bar is drawn when a loss is written is that of training.
            self.max_steps, self._total_is_sure = self._bar[1], True
            self.step = self._bar[0]
        return self.step

    def _take_text(self, line: str, now: str | None) -> None:
        found: dict[str, float] = {}
        for key in FIGURES:
            if (value := _figure(key, line)) is not None:
                found[key] = value
        if match := _PATTERNS["tokens_before"].search(line):
            found["tokens_per_s"] = _number(match[1]) or 0.0
        if loss := FIGURES["loss"].search(line):
            line = line[: loss.end()] + _PATTERNS["evaluation_loss"].sub("", line[loss.end() :])
        if _PATTERNS["evaluates"].search(line):
            found.pop("loss", None)
        if (epoch := _PATTERNS["epoch_of"].search(line)) and {"step", "max_steps"} <= found.keys():
            self._count_epochs(found, int(epoch[1]), int(epoch[2]))
        if total := _count(found.pop("max_steps", None)):
            self.max_steps, self._total_is_sure = total, True
        if found:
            self._add(found, _count(found["step"]) if "step" in found else self.step, now)

    def _count_epochs(self, found: dict[str, float], epoch: int, epochs: int) -> None:
        """Make a step of an epoch one of the run. Whether it is one is seen in the second epoch: until then, the number
        of steps is unknown."""
        self._first_epoch = min(self._first_epoch, epoch)
        if self._epoch_step and epoch > self._epoch_step[0]:
            self._steps_are_of_epochs = found["step"] <= self._epoch_step[1]
        self._epoch_step = (epoch, found["step"])
        if self._steps_are_of_epochs:
            found["step"] += (epoch - self._first_epoch) * found["max_steps"]
            found["max_steps"] *= epochs
        elif self._steps_are_of_epochs is None and epochs > 1:
            del found["max_steps"]

    def _add(self, found: dict[str, float], step: int | None, now: str | None) -> None:
        """The figures of one line; those of a step without a loss of its own belong to the line before."""
        if "step_ms" in found:
            found["step_s"] = found.pop("step_ms") / 1000
        if "mfu" in found:
            found["mfu"] /= 100
            if found["mfu"] < 0:  # nanoGPT, until it knows
                del found["mfu"]
        self.step_s = found.pop("step_s", self.step_s)
        self.figures |= {key: value for key, value in found.items() if key not in ("step", "max_steps")}
        if step is None and "loss" in found:
            # No step is written anywhere: the lines are counted.
            step = self.steps[-1]["step"] + 1 if self.steps else 1
            found["counted"] = True
        elif step is not None:
            self.step = step
        if "loss" not in found or step is None:
            return
        while self.steps and self.steps[-1]["step"] > step:
            self.steps.pop()
        record = {**found, "step": step, **({"time": now} if now else {})}
        if self.steps and self.steps[-1]["step"] == step:
            self.steps[-1] = {**self.steps[-1], **record}
        else:
            self.steps.append(record)
        if len(self.steps) > MOST_STEPS:
            self.steps = self.steps[: MOST_STEPS // 2 : 2] + self.steps[MOST_STEPS // 2 :]


def _time_of(line: str) -> str | None:
    """The time stamp in a line, as ISO 8601; None where there is none. Without a zone it is this machine's time."""
    if not (found := _PATTERNS["time"].search(line)):
        return None
    day, clock, fraction, zone = found.groups()
    return f"{day}T{clock}.{(fraction or '0')[:3]:0<3}{zone or ''}"


def _figure(key: str, text: str) -> float | None:
    """The figure of this key in a text; NaN is one of a loss only."""
    match = FIGURES[key].search(text)
    value = next(filter(None, match.groups()), None) if match else None
    number = _number(value)
    return math.nan if key == "loss" and value and number is None else number


def _values(line: str) -> Mapping[str, Any] | None:
    """The dict or JSON object in a line; None where there is none with a figure that we know."""
    end = line.rfind("}")
    begin = _PATTERNS["dict"].search(line, 0, max(0, end))
    if not begin:
        return None
    value: Any = None
    with suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        # The Trainer writes nan and inf as Python's repr does, which no parser takes.
        text = re.sub(r"(?<=: )-?(?:nan|inf)\b", '"nan"', line[begin.start() : end + 1])
        value = parse_json(text) if '": ' in text or '":' in text else ast.literal_eval(text)
    known = {name for names in KEYS.values() for name in names} | {"train_runtime"}
    if isinstance(value, dict) and any(key in known or str(key).startswith("eval") for key in value):
        return {str(key): each for key, each in value.items()}
    return None


def _first(values: Mapping[str, Any], names: Iterable[str]) -> float | None:
    return next((number for name in names if (number := _number(values.get(name))) is not None), None)


def _is_broken(value: Any) -> bool:
    """Whether a value is a number, but not a finite one, also as text: not "cross_entropy"."""
    with suppress(TypeError, ValueError, OverflowError):
        return not math.isfinite(float(value))
    return False


def _number(value: Any) -> float | None:
    """A finite number, also one written as text ("1,234.5"); None for anything else."""
    with suppress(ValueError, OverflowError):
        number = finite(float(value.replace(",", "")) if isinstance(value, str) else value)
        return number if number is not None and abs(number) < _LARGEST else None
    return None


def _count(value: Any) -> int | None:
    """A number of steps; None for what cannot be one."""
    number = _number(value)
    return int(number) if number is not None and 0 <= number <= _MOST else None
