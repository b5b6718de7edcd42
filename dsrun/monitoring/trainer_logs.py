"""The figures in the logs of other trainers, line by line.

Known are the dicts of the Hugging Face Trainer with its tqdm bar, DeepSpeed's own lines, Megatron-LM's, torchtitan's
and nanoGPT's, JSON lines, and whatever else writes "step" and "loss" before numbers.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from dsrun.monitoring.history import Record
from dsrun.system.files import parse_json

_NUMBER = r"([-+]?(?:\d[\d,]*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|nan|inf|-inf)"
_IS = r"['\"]?\s*[:=]?\s*[\[(]?\s*"
# key -> how it stands in a line. A figure counts where it is found first.
_FIGURES = {
    "step": re.compile(
        r"(?<![\w.])(?:global[_ ])?(?:steps?|iter(?:ation)?s?|iter_num)(?: num(?:ber)?)?\b" + _IS + r"(\d[\d,]*)(?![\w.]\S)",
        re.I,
    ),
    "max_steps": re.compile(
        r"(?:steps?|iter(?:ation)?s?)\b[\s:=\[(]*\d[\d,]*\s*(?:/|of)\s*(\d[\d,]*)|total (?:optimization )?steps[ =:]+([\d,]+)", re.I
    ),
    "loss": re.compile(r"(?<![\w/])(?:lm |train(?:ing)?[_ /])?loss\b(?! scale)" + _IS + _NUMBER, re.I),
    "lr": re.compile(r"(?<!\w)(?:lr|learning[_ ]rate)\b" + _IS + _NUMBER, re.I),
    "grad_norm": re.compile(r"(?<!\w)(?:grad(?:ient)?[_ ]?norm|gnorm)\b" + _IS + _NUMBER, re.I),
    "epoch": re.compile(r"(?<!\w)epoch\b" + _IS + r"(\d+(?:\.\d+)?)", re.I),
    "tokens_per_s": re.compile(r"(?<!\w)(?:tps|tok(?:en)?s?(?:[_ ]per[_ ]sec(?:ond)?|/s(?:ec)?))\b" + _IS + _NUMBER, re.I),
    "samples_per_s": re.compile(r"(?:CurrSamplesPerSec|samples?(?:[_ ]per[_ ]second|/s(?:ec)?))" + _IS + _NUMBER, re.I),
    "mfu": re.compile(r"(?<!\w)mfu\b" + _IS + _NUMBER + r"\s*%", re.I),
    "step_ms": re.compile(
        r"(?:elapsed time per iteration \(ms\)|(?<!\w)(?:time|dt|step[_ ]time)(?: ?\(ms\))?)\s*[:=]?\s*" + _NUMBER + r"(?=\s*ms|\s*\|)",
        re.I,
    ),
    "step_s": re.compile(r"iter time \(s\)" + _IS + _NUMBER, re.I),
}  # fmt: skip
# dsrun's own console and nanoGPT's variants: the number stands before its unit.
_TOKENS_BEFORE = re.compile(r"([\d,.]+) tok(?:en)?s/s")
_BAR = re.compile(r"(?P<what>[^|\r\n]*?)\s*\d+%\|[^|]*\|\s*(?P<step>\d+)/(?P<total>\d+) \[(?P<times>[^\]]*)\]")
_RATE = re.compile(r"([\d.]+)(it/s|s/it)")
_TIME = re.compile(r"\b(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,](\d{1,6}))?(Z|[+-]\d\d:?\d\d)?")
_DICT = re.compile(r"\{['\"].*\}")
_EVALUATES = re.compile(r"\b(?:eval\w*|val(?:id\w*)?|test)\b(?!_)", re.I)
_CONTROL = re.compile(r"\x1b\[[0-9;:]*[A-Za-z]")
_INTERESTING = re.compile(r"loss|step|iter|it/s|s/it|%\||SamplesPerSec|Num Epochs", re.I)
_END = re.compile(
    r"\btraining (?:is )?(?:completed|finished|done)\b|['\"]?train_runtime|Training completed\. Do not forget", re.I
)
_EPOCHS = re.compile(r"Num Epochs = ([\d,]+)")
# The keys of dicts and JSON lines -> ours.
_KEYS = {
    "step": ("step", "global_step", "current_steps", "iteration", "iter", "trainer/global_step", "_step"),
    "max_steps": ("max_steps", "total_steps", "max_iters"),
    "loss": ("loss", "train_loss", "train/loss", "lm_loss", "training_loss", "loss_metrics/global_avg_loss"),
    "lr": ("lr", "learning_rate", "train/learning_rate", "train/lr"),
    "grad_norm": ("grad_norm", "train/grad_norm", "gradient_norm"),
    "epoch": ("epoch", "train/epoch"),
    "tokens_per_s": ("tokens_per_s", "tokens_per_second", "tps", "throughput", "throughput(tps)", "tokens_per_second_per_gpu"),
    "samples_per_s": ("samples_per_s", "samples_per_second"),
}  # fmt: skip
MOST_STEPS = 20_000


class TrainerLog:
    """What the lines that were fed to it tell: `steps` and `evaluations` as in a RunHistory, and the last figures."""

    def __init__(self) -> None:
        self.steps: list[Record] = []
        self.evaluations: list[Record] = []
        self.step: int | None = None
        self.max_steps: int | None = None
        self.step_s: float | None = None
        self.figures: dict[str, float] = {}
        self.has_ended = False
        self.loss_is_finite = True
        self._epochs: float | None = None
        self._bar: tuple[int, int] | None = None
        self._total_is_sure = False
        self._step_is_due = False

    def feed(self, lines: Iterable[str], now: str | None = None) -> None:
        """Take further lines in, also such as a bar rewrites with carriage returns. `now` (ISO 8601) is the time of
        lines that bear none."""
        for line in lines:
            for piece in line.split("\r"):
                if _INTERESTING.search(piece) or _END.search(piece):
                    self._take(_CONTROL.sub("", piece), now)

    def _take(self, line: str, now: str | None) -> None:
        now = _time_of(line) or now
        if bar := _BAR.search(line):
            self._take_bar(bar)
            line = line[bar.end() :]
        if (values := _values(line)) is not None:
            self._take_values(values, now)
        elif found := _EPOCHS.search(line):
            self._epochs = float(found[1].replace(",", ""))
        else:
            self._take_text(line, now)
        self.has_ended = bool(_END.search(line)) or (self.has_ended and "loss" not in line)

    def _take_bar(self, bar: re.Match[str]) -> None:
        """A tqdm bar: that of training has no other name, and the total of the first one, or the one known."""
        step, total = int(bar["step"]), int(bar["total"])
        what = bar["what"].strip().lower().rstrip(":").strip()
        if what and not re.search(r"train|step|epoch|iter", what):
            return
        if what.startswith("epoch"):
            return  # its steps begin again with every epoch
        self._bar = (step, total)
        if self.max_steps is None:
            self.max_steps = total
        if total == self.max_steps:
            self.step = max(step, self.step or 0)
            if self._step_is_due:
                # tqdm draws its bar anew below what is written above it, and bars are rarer than steps.
                self._step_is_due = False
                self.steps[-1] = {**self.steps[-1], "step": self.step}
            if (found := _RATE.search(bar["times"])) and (rate := float(found[1])) > 0:
                self.step_s = rate if found[2] == "s/it" else 1 / rate

    def _take_values(self, values: Mapping[str, Any], now: str | None) -> None:
        """A dict of the Trainer, or a JSON line."""
        found = {key: value for key, names in _KEYS.items() if (value := _first(values, names)) is not None}
        numbers = ((key, _number(value)) for key, value in values.items() if key.startswith("eval"))
        evaluated = {key: number for key, number in numbers if number is not None}
        if "max_steps" in found:
            self.max_steps = int(found.pop("max_steps"))
        if any(name in values for name in _KEYS["loss"]):
            self.loss_is_finite = "loss" in found
        step = self._step_of(found)
        if evaluated and "loss" not in found:
            if step is not None:
                self.evaluations.append({"step": step, **evaluated})
        elif "train_runtime" not in values:
            self._add(found, step, now)
            self._step_is_due = "loss" in found and "step" not in found and self._bar is not None

    def _step_of(self, found: Mapping[str, float]) -> int | None:
        if "step" in found:
            return int(found["step"])
        if self._epochs and self.max_steps and "epoch" in found:
            return round(found["epoch"] / self._epochs * self.max_steps)
        if self._bar and "loss" in found and not self._total_is_sure:
            # Whatever bar is drawn when a loss is written is that of training.
            self.max_steps, self._total_is_sure = self._bar[1], True
            self.step = self._bar[0]
        return self.step

    def _take_text(self, line: str, now: str | None) -> None:
        found: dict[str, float] = {}
        for key, pattern in _FIGURES.items():
            if match := pattern.search(line):
                value = _number(next(filter(None, match.groups()), None))
                if value is not None:
                    found[key] = value
                if key == "loss" and not _EVALUATES.search(line):
                    self.loss_is_finite = value is not None
        if match := _TOKENS_BEFORE.search(line):
            found["tokens_per_s"] = _number(match[1]) or 0.0
        if _EVALUATES.search(line):
            found.pop("loss", None)
        if "max_steps" in found:
            self.max_steps, self._total_is_sure = int(found.pop("max_steps")), True
        if found:
            self._add(found, int(found["step"]) if "step" in found else self.step, now)

    def _add(self, found: dict[str, float], step: int | None, now: str | None) -> None:
        """The figures of one line; those of a step without a loss of its own belong to the line before."""
        if "step_ms" in found:
            found["step_s"] = found.pop("step_ms") / 1000
        if "mfu" in found:
            found["mfu"] /= 100
        self.step_s = found.pop("step_s", self.step_s)
        self.figures |= {key: value for key, value in found.items() if key not in ("step", "max_steps")}
        if step is None and "loss" in found:
            step = len(self.steps) + 1  # no step is written anywhere: the lines are counted
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
    if not (found := _TIME.search(line)):
        return None
    day, clock, fraction, zone = found.groups()
    return f"{day}T{clock}.{(fraction or '0')[:3]:0<3}{zone or ''}"


def _values(line: str) -> Mapping[str, Any] | None:
    """The dict or JSON object in a line; None where there is none with a figure that we know."""
    found = _DICT.search(line)
    if not found:
        return None
    value: Any = None
    with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
        # The Trainer writes nan and inf as Python's repr does, which no parser takes.
        text = re.sub(r"(?<=: )-?(?:nan|inf)\b", "None", found[0])
        value = parse_json(text) if '": ' in text or '":' in text else ast.literal_eval(text)
    known = {name for names in _KEYS.values() for name in names} | {"train_runtime"}
    if isinstance(value, dict) and any(key in known or str(key).startswith("eval") for key in value):
        return {str(key): each for key, each in value.items()}
    return None


def _first(values: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    return next((number for name in names if (number := _number(values.get(name))) is not None), None)


def _number(value: Any) -> float | None:
    """A finite number, also one written as text ("1,234.5"); None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    with suppress(ValueError):
        number = float(value.replace(",", "") if isinstance(value, str) else value)
        return number if math.isfinite(number) else None
    return None
