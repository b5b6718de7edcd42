"""In which number format a run computes."""

from typing import Any, Literal

from dsrun.datafiles import evaluate, toml_beside
from dsrun.errors import UsageError
from dsrun.models.families import family_of, overflow_in_fp16

TrainingPrecision = Literal["bf16", "fp16", "fp32"]
BF16_FROM = (8, 0)
"""The compute capability of the first GPUs that compute in bf16."""


def decide_precision(
    given: dict[str, Any],
    *,
    model_type: str,
    bf16_supported: bool,
    device: str,
    deepspeed: dict[str, Any] | None = None,
    force: bool = False,
) -> TrainingPrecision:
    """The precision asked for, else bf16 where the hardware computes in it, else fp32.

    `given` holds the user's own `bf16` and `fp16` flags; a DeepSpeed configuration that switches one of them on or off
    decides like a flag. Raises UsageError for fp16 on models that overflow in it, unless `force`."""
    blocks = {name: (deepspeed or {}).get(name) for name in ("bf16", "fp16")}
    switches = {name: block.get("enabled", False) for name, block in blocks.items() if isinstance(block, dict)}
    requested = {name: value for name, value in switches.items() if isinstance(value, bool)}
    requested |= {name: value for name, value in given.items() if name in blocks}
    chosen: TrainingPrecision = "fp16" if requested.get("fp16") else "bf16" if requested.get("bf16") else "fp32"
    overflow = overflow_in_fp16(model_type) if family_of(model_type).overflows_in_fp16 else ""
    names = {"chosen": chosen, "overflow": overflow, "device": device, "bf16_supported": bf16_supported}
    for each in () if force else toml_beside(__file__).values():
        if evaluate(each["when"], names):
            raise UsageError(each["message"].format_map(names), fix=each["fix"])
    return chosen if requested or not bf16_supported else "bf16"
