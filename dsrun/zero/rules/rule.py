"""A rule: settings of a DeepSpeed configuration that exclude each other, or of which one makes the other useless.

The same rules hold for a file (`dsrun config check`) and for what flags ask (`dsrun config`): they look at the JSON
that DeepSpeed will read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from dsrun.findings import Level
from dsrun.zero.schema import shown
from dsrun.zero.view import ZERO, ConfigView

OPTIMIZER = f"{ZERO}.offload_optimizer"
PARAM = f"{ZERO}.offload_param"
ZENFLOW = f"{ZERO}.zenflow"

STAGE12 = "runtime/zero/stage_1_and_2.py"
STAGE3 = "runtime/zero/stage3.py"
ENGINE = "runtime/engine.py"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """`when` the settings meet, a finding at `key`: an error where DeepSpeed stops, a warning where it ignores one.

    `message` and `fix` may name keys in braces, which stand for their values. `source` is the place in DeepSpeed's
    code, below deepspeed/, that refuses or ignores the combination.
    """

    when: Callable[[ConfigView], bool]
    key: str
    message: str
    fix: str
    source: str
    level: Level = "error"
    code: str = "conflict"

    def words(self, text: str, view: ConfigView) -> str:
        """`text` with the values of the keys in braces."""
        return re.sub(r"\{([\w.]+)\}", lambda match: shown(view.value(match[1])), text)


def broken(rules: tuple[Rule, ...], view: ConfigView) -> Iterator[tuple[Rule, str, str]]:
    """The rules that the configuration breaks, each with its message and fix."""
    for rule in rules:
        if rule.when(view):
            yield rule, rule.words(rule.message, view), rule.words(rule.fix, view)


def is_on(view: ConfigView, key: str) -> bool:
    """Whether a switch is on."""
    return view.value(key) is True


def number(view: ConfigView, key: str, default: float = 0) -> float:
    """A number, or `default` where it is not one or cannot be known."""
    found: Any = view.value(key)
    return found if isinstance(found, int | float) and not isinstance(found, bool) else default


def offloads_optimizer(view: ConfigView) -> bool:
    """Whether optimizer states leave the GPU."""
    return view.offload("offload_optimizer") in ("cpu", "nvme")


def uses_nvme(view: ConfigView) -> bool:
    """Whether anything goes to NVMe."""
    return "nvme" in (view.offload("offload_optimizer"), view.offload("offload_param"))


def has_zenflow(view: ConfigView) -> bool:
    """Whether there is a ZenFlow block."""
    return view.is_block(ZENFLOW)


def optimizer_name(view: ConfigView) -> str | None:
    """The optimizer's name in lower case, None where the file names none."""
    name = view.raw("optimizer", "type")
    return name.lower() if isinstance(name, str) else None


def is_adam(view: ConfigView) -> bool:
    """Whether DeepSpeed makes an Adam, or the file leaves the optimizer to the program."""
    return optimizer_name(view) in (None, "adam", "adamw", "auto")


def is_own_adam(view: ConfigView) -> bool:
    """Whether the Adam is DeepSpeed's own, not PyTorch's."""
    return is_adam(view) and view.raw("optimizer", "params", "torch_adam") is not True


def precision(view: ConfigView) -> str | None:
    """bf16, fp16 or fp32, None where the Trainer decides."""
    fp16, bf16 = view.precision("fp16"), view.precision("bf16")
    if fp16 or bf16:
        return "fp16" if fp16 else "bf16"
    return None if fp16 is None or bf16 is None else "fp32"
