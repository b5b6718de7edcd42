""" "auto": what the Trainer fills, what accelerate fills with constants, and what nobody fills.

accelerate walks through the whole file before it calls DeepSpeed and raises ValueError for every "auto" that is
left (DeepSpeedPlugin.deepspeed_config_process), even where DeepSpeed has an "auto" of its own. DeepSpeed alone
drops an "auto" in its pydantic models and takes it for a text elsewhere.
"""

from __future__ import annotations

from dsrun.zero.coercion import shown
from dsrun.zero.lint.reporter import Reporter
from dsrun.zero.lint.source import dotted
from dsrun.zero.lint.structure import MONITORS, leaves
from dsrun.zero.schema import Block, Path, blocks
from dsrun.zero.view import AUTO, CONSTANTS, TRAINER_FILLS, ConfigView

# DeepSpeedPlugin.__post_init__ sets it to infinity.
OVERWRITTEN = (("steps_per_print",),)


def check_auto(view: ConfigView, sheet: Reporter) -> None:
    """Judge every "auto" of the file."""
    for path, value in leaves(view.config):
        if not isinstance(value, str) or value != AUTO:
            continue
        if view.for_trainer:
            _under_the_trainer(path, view, sheet)
        else:
            _under_deepspeed(path, view, sheet)


def _under_the_trainer(path: Path, view: ConfigView, sheet: Reporter) -> None:
    if path in TRAINER_FILLS or path in OVERWRITTEN:
        return
    if path == ("zero_allow_untested_optimizer",) and not view.has("optimizer"):
        return  # deepspeed_optim_sched sets it to true
    if path in CONSTANTS:
        constant = shown(CONSTANTS[path])
        sheet.warning(
            "auto_is_a_constant",
            path,
            f'accelerate fills this "auto" with {constant}, whatever the training flags say',
            f'write "{path[-1]}": {constant}, or the value you mean',
        )
        return
    sheet.error(
        "auto_nobody_fills",
        path,
        f'{path[-1]} is "auto", which neither the Trainer nor accelerate fills: accelerate stops with it',
        _instead(path),
    )


def _instead(path: Path) -> str:
    default = default_of(path)
    return (
        f'write "{path[-1]}": {shown(default)} (DeepSpeed\'s default) or leave it out'
        if default is not None
        else ("write a value, or leave the key out")
    )


def _under_deepspeed(path: Path, view: ConfigView, sheet: Reporter) -> None:
    block = _block_of(path)
    dropped = (block is not None and block.style == "model") or path[-1] in MONITORS
    own = block is not None and block.path in ("expert_parallel", "data_types", "pipeline")
    if dropped:
        sheet.warning(
            "auto_nobody_fills",
            path,
            f'without the HF Trainer nobody fills this "auto": DeepSpeed takes its default'
            f" ({shown(default_of(path))}); under the Trainer accelerate refuses it"
            if path not in TRAINER_FILLS | CONSTANTS.keys()
            else f'without the HF Trainer nobody fills this "auto": DeepSpeed takes {shown(default_of(path))}',
            _instead(path),
        )
    elif own:
        sheet.warning(
            "auto_nobody_fills",
            path,
            'the HF Trainer refuses this "auto"',
            "leave the key out: it is the default",
        )
    elif block is not None and path[-1] in block.keys and path not in BATCH:
        sheet.warning("auto_nobody_fills", path, 'DeepSpeed takes this "auto" for a text', _instead(path))


BATCH = (("train_batch_size",), ("train_micro_batch_size_per_gpu",), ("gradient_accumulation_steps",))


def _block_of(path: Path) -> Block | None:
    return blocks().get(dotted(path[:-1]))


def default_of(path: Path) -> object:
    """DeepSpeed's default for a key, None when it is unknown or null."""
    block = _block_of(path)
    key = block.spellings.get(str(path[-1])) if block else None
    return block.keys[key].get("default") if block and key else None
