"""From a ZeroSpec to DeepSpeed's JSON.

Values that the Hugging Face Trainer fills from its own arguments are "auto"; every default that moved between
DeepSpeed releases is written out, so that the same file means the same next year.
"""

from __future__ import annotations

import json
from typing import Any

from dsrun.zero.generate import blocks, training_blocks
from dsrun.zero.generate.blocks import ConfigContext, FlatConfig, HardwareFacts, ReasonedValue
from dsrun.zero.generate.presets import LARGEST_BUCKET, SMALLEST_BUCKET, bucket_elements
from dsrun.zero.generate.spec import ZeroSpec, flag_of, given
from dsrun.zero.rules.check import check

__all__ = [
    "LARGEST_BUCKET",
    "SMALLEST_BUCKET",
    "HardwareFacts",
    "bucket_elements",
    "build",
    "generate",
    "render",
]

# The order of the blocks is that in which a reader asks: how much, how exact, how sharded, how updated.
WRITERS = (
    training_blocks.batch,
    training_blocks.clipping,
    blocks.precision,
    blocks.zero,
    training_blocks.optimizer,
    training_blocks.scheduler,
    training_blocks.parallel,
    training_blocks.extras,
)


def generate(
    spec: ZeroSpec, *, hidden_size: int | None = None, facts: HardwareFacts | None = None
) -> dict[str, Any]:
    """DeepSpeed's configuration for `spec`.

    With `hidden_size` (the model's width, in elements) the bucket sizes are numbers; without it they are "auto"
    for the Trainer, and those of a usual model for DeepSpeed alone. `facts` says more about model and GPU.
    Raises UsageError for what DeepSpeed does not have and for options that do not go together.
    """
    config: dict[str, Any] = {}
    for path, because in build(spec, facts or HardwareFacts(hidden_size=hidden_size)).items():
        *parents, key = path.split(".")
        block = config
        for parent in parents:
            block = block.setdefault(parent, {})
        block[key] = because.value
    return config


def build(spec: ZeroSpec, facts: HardwareFacts) -> FlatConfig:
    """Every key of the configuration by its path, with the reason for its value. Raises as `generate` does."""
    case = ConfigContext(spec=spec, facts=facts)
    check(spec, blocks.precision_of(case).value, facts.gpu)
    flat: FlatConfig = {}
    for writer in WRITERS:
        flat |= writer(case)
    return flat | _given(spec)


def _given(spec: ZeroSpec) -> FlatConfig:
    """What options ask for that have a key of their own; they win over every preset."""
    flat: FlatConfig = {}
    for each, value in given(spec):
        path = each.metadata["sets"]
        if path is None:
            continue
        asked = f"asked by {_asked(each.name, value)}"
        flat |= {also: ReasonedValue(fixed, asked) for also, fixed in each.metadata["along"].items()}
        flat[path] = ReasonedValue(list(value) if isinstance(value, tuple) else value, asked)
    return flat


def _asked(name: str, value: Any) -> str:
    flag = flag_of(name)
    if isinstance(value, bool):
        return flag if value else flag.replace("--", "--no-", 1)
    words = " ".join(map(str, value)) if isinstance(value, tuple) else value
    return f"{flag} {words}"


def render(config: dict[str, Any]) -> str:
    """The configuration as it is written to a file: indented JSON with a final newline."""
    return json.dumps(config, indent=2, ensure_ascii=False) + "\n"
