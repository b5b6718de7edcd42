"""In which number format a run computes."""

from typing import Any, Literal

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
    decides like a flag. Raises UsageError for fp16 on models that overflow in it, unless `force`.
    """
    requested = dict(_switches(deepspeed or {})) | {k: v for k, v in given.items() if k in ("bf16", "fp16")}
    if requested.get("fp16"):
        if family_of(model_type).overflows_in_fp16 and not force:
            raise UsageError(
                f"--fp16: {overflow_in_fp16(model_type)}",
                fix="use --bf16, or fp32 with --bf16 false; --force trains in fp16 all the same",
            )
        if device == "cpu" and not force:
            raise UsageError(
                "--fp16: training in fp16 needs a GPU",
                fix="use --bf16, or fp32 with --bf16 false; --force tries it where the processor computes in fp16",
            )
        return "fp16"
    if requested.get("bf16"):
        if not bf16_supported and device == "cuda" and not force:
            raise UsageError(
                "--bf16: this GPU does not compute in bf16 (compute capability 8.0 and above do)",
                fix="use --fp16, or fp32 with --bf16 false",
            )
        return "bf16"
    if "bf16" in requested or "fp16" in requested:
        return "fp32"
    return "bf16" if bf16_supported else "fp32"


def _switches(deepspeed: dict[str, Any]) -> list[tuple[str, bool]]:
    """The precision blocks of a DeepSpeed configuration that are true or false themselves."""
    blocks = ((name, deepspeed.get(name)) for name in ("bf16", "fp16"))
    values = ((name, block.get("enabled", False)) for name, block in blocks if isinstance(block, dict))
    return [(name, value) for name, value in values if isinstance(value, bool)]
