"""fp16's loss scaling: overflows that are part of it, and the one that is not."""

from __future__ import annotations

from typing import Any

from dsrun.errors import ToolError

# torch's GradScaler knows no minimum; below this the loss itself is what overflows. DeepSpeed's own minimum is 1 too.
SMALLEST_SCALE = 1.0


def expected_overflow(trainer: Any, optimizer: Any) -> bool:
    """Whether a norm that is not finite only means that the loss scale is still too large; `optimizer` is DeepSpeed's.

    The scaler has then left the step out and lowered the scale. Raises ToolError where it cannot be lowered any more;
    DeepSpeed raises an exception of its own there.
    """
    if optimizer is not None:
        return bool(getattr(optimizer, "dynamic_loss_scale", False)) and trainer.args.fp16
    scaler = trainer.accelerator.scaler
    if scaler is None or not scaler.is_enabled():
        return False
    if scaler.get_scale() < SMALLEST_SCALE:
        raise ToolError(
            f"the fp16 loss scale fell below {SMALLEST_SCALE:g}: the loss itself overflows",
            fix="use --bf16, or fp32 with --bf16 false",
            cause="loss_scale_overflow",
        )
    return True
