"""From a ZeroSpec to DeepSpeed's JSON.

Values that the Hugging Face Trainer fills from its own arguments are "auto"; every default that moved between
DeepSpeed releases is written out, so that the same file means the same next year.
"""

from __future__ import annotations

import json
from typing import Any

from dsrun.zero.generate import blocks, training_blocks
from dsrun.zero.generate.blocks import ConfigContext, FlatConfig, HardwareFacts, ReasonedValue
from dsrun.zero.generate.check import check_config, check_flags
from dsrun.zero.generate.override import overrides, switches
from dsrun.zero.generate.presets import LARGEST_BUCKET, SMALLEST_BUCKET, bucket_elements
from dsrun.zero.generate.spec import ZeroSpec, as_typed, given

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
    facts = facts or HardwareFacts(hidden_size=hidden_size)
    config = nested(build(spec, facts))
    check_config(config, spec, facts)
    return config


def nested(flat: FlatConfig) -> dict[str, Any]:
    """The values by block."""
    config: dict[str, Any] = {}
    for path, reasoned in flat.items():
        *parents, key = path.split(".")
        block = config
        for parent in parents:
            block = block.setdefault(parent, {})
        block[key] = reasoned.value
    return config


def build(spec: ZeroSpec, facts: HardwareFacts) -> FlatConfig:
    """Every key of the configuration by its path, with the reason for its value.

    Raises UsageError for flags that do not go together; what the JSON shows is left to `check_config`.
    """
    check_flags(spec)
    case = ConfigContext(spec=spec, facts=facts)
    flat: FlatConfig = {}
    for writer in WRITERS:
        flat |= writer(case)
    return flat | _copied(spec) | _overridden(spec, flat)


def _copied(spec: ZeroSpec) -> FlatConfig:
    """What options ask for that are a key of the JSON as they are; they win over every preset."""
    flat: FlatConfig = {}
    for each, value in given(spec):
        if each.metadata["copied"]:
            asked = f"asked by {as_typed(each.name, value)}"
            flat[each.metadata["key"]] = ReasonedValue(value, asked)
            flat |= {also: ReasonedValue(fixed, asked) for also, fixed in each.metadata["along"].items()}
    return flat


def _overridden(spec: ZeroSpec, given: FlatConfig) -> FlatConfig:
    """The keys of --set, which win over everything else."""
    flat: FlatConfig = {}
    for word in spec.overrides:
        for key, value in overrides((word,)).items():
            flat[key] = ReasonedValue(value, f"asked by --set {word}")
    enabled = {key: f"--set names a key of {key.rpartition('.')[0]}" for key in switches(flat, given)}
    return {key: ReasonedValue(True, why) for key, why in enabled.items()} | flat


def render(config: dict[str, Any]) -> str:
    """The configuration as it is written to a file: indented JSON with a final newline."""
    return json.dumps(config, indent=2, ensure_ascii=False) + "\n"
