"""What the HF Trainer and accelerate do with a file before DeepSpeed sees it.

The look-ups are those of transformers.integrations.deepspeed, accelerate.utils.dataclasses.DeepSpeedPlugin and
Accelerator._prepare_deepspeed.
"""

from __future__ import annotations

from dsrun.findings import Level
from dsrun.zero.coercion import shown
from dsrun.zero.lint.reporter import Reporter
from dsrun.zero.view import MISSING, ZERO, ConfigView

# fill_match looks into these; anything but an object in the way ends in AttributeError.
LOOKED_INTO = (
    ("optimizer",),
    ("optimizer", "params"),
    ("scheduler",),
    ("scheduler", "params"),
    ("fp16",),
    ("bf16",),
)
LEGACY_BF16 = ("bfloat16",)


def check_trainer(view: ConfigView, sheet: Reporter) -> None:
    """Errors when the file is for the Trainer, warnings where it stops a file that DeepSpeed alone would run."""
    level: Level = "error" if view.for_trainer else "warning"
    if not view.has(ZERO) and not (view.asked and not view.for_trainer):
        message = "accelerate refuses a file without zero_optimization"
        sheet.add(
            level,
            "trainer_stops",
            (),
            message,
            'add "zero_optimization": {"stage": 0}, or the stage you want',
        )
    if not view.for_trainer:
        return
    if isinstance(view.raw(ZERO), bool):
        message = (
            f"the Trainer looks for a stage in zero_optimization, which is {shown(view.raw(ZERO))}, and fails"
        )
        sheet.error("trainer_stops", (ZERO,), message, 'write {"stage": 1}')
    if not view.has("optimizer") and view.raw(ZERO, "offload_optimizer") is None:
        message = "accelerate looks for a device in offload_optimizer, which is null, and fails"
        sheet.error("trainer_stops", (ZERO, "offload_optimizer"), message, "leave the key out")
    for path in LOOKED_INTO:
        value = view.raw(*path)
        if value is not MISSING and value is not None and not isinstance(value, dict):
            message = f"the Trainer looks into {path[-1]}, which is {shown(value)}, and fails"
            sheet.error("trainer_stops", path, message, f'write "{path[-1]}": {{…}}')
    micro = view.raw("train_micro_batch_size_per_gpu")
    if view.raw("gradient_accumulation_steps") is None and micro not in (MISSING, None):
        message = "accelerate multiplies by gradient_accumulation_steps, which is null, and fails"
        sheet.error("trainer_stops", ("gradient_accumulation_steps",), message, 'write "auto"')
    _tensor_parallel(view, sheet)
    _ignored(view, sheet)


def _tensor_parallel(view: ConfigView, sheet: Reporter) -> None:
    size = view.raw("tensor_parallel", "autotp_size")
    if size is not MISSING and not isinstance(size, int | float):
        message = f"accelerate compares autotp_size with 1 and fails on {shown(size)}"
        sheet.error(
            "trainer_stops", ("tensor_parallel", "autotp_size"), message, "write a number without quotes"
        )


def _ignored(view: ConfigView, sheet: Reporter) -> None:
    """Keys that the Trainer makes useless."""
    if view.has(*LEGACY_BF16):
        message = (
            "accelerate adds a bf16 block that is off, and DeepSpeed then ignores bfloat16: it trains in fp32"
        )
        sheet.warning("ignored_key", LEGACY_BF16, message, "rename it to bf16")
    if view.has("steps_per_print"):
        message = "accelerate sets steps_per_print to infinity; the Trainer logs every --logging_steps"
        sheet.info("no_effect", ("steps_per_print",), message, "leave it out")
    if isinstance(view.raw("activation_checkpointing"), dict):
        message = "models of transformers do not use DeepSpeed's activation checkpointing"
        sheet.info("no_effect", ("activation_checkpointing",), message, "use --activation_checkpointing")
