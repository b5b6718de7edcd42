"""What the HF Trainer and accelerate do with a file before DeepSpeed sees it: blocks they need, "auto", training flags.

accelerate walks through the whole file before it calls DeepSpeed and raises ValueError for every "auto" that is
left (DeepSpeedPlugin.deepspeed_config_process), even where DeepSpeed has an "auto" of its own. DeepSpeed alone
drops an "auto" in its pydantic models and takes it for a text elsewhere.

The look-ups are those of transformers.integrations.deepspeed, accelerate.utils.dataclasses.DeepSpeedPlugin and
Accelerator._prepare_deepspeed."""

import math
from typing import Any

from dsrun.datafiles import SubjectNames, evaluate, toml_beside
from dsrun.findings.finding import text_of
from dsrun.zero.lint.batch import NAMES
from dsrun.zero.lint.codes import ConfigFindings
from dsrun.zero.lint.source import dotted
from dsrun.zero.lint.structure import MONITORS, leaves
from dsrun.zero.schema import Path, SchemaBlock, blocks, shown
from dsrun.zero.view import AUTO, CONSTANTS, MISSING, TRAINER_FILLS, ConfigView, TrainingFlags


def check_auto(view: ConfigView, report: ConfigFindings) -> None:
    for path, value in leaves(view.config):
        if isinstance(value, str) and value == AUTO:
            (_under_the_trainer if view.for_trainer else _under_deepspeed)(path, view, report)


def _under_the_trainer(path: Path, view: ConfigView, report: ConfigFindings) -> None:
    # DeepSpeedPlugin.__post_init__ sets steps_per_print to infinity, deepspeed_optim_sched the other to true.
    forced = path == ("zero_allow_untested_optimizer",) and not view.has("optimizer")
    if path in TRAINER_FILLS or path == ("steps_per_print",) or forced:
        return
    if path in CONSTANTS:
        report.add("auto_is_a_constant", path, constant=shown(CONSTANTS[path]))
    else:
        report.add("auto_nobody_fills", path, fix=_instead(path))


def _instead(path: Path) -> str:
    default = default_of(path)
    if default is None:
        return text_of("repair.no_default")
    return text_of("repair.default", key=path[-1], value=shown(default))


def _under_deepspeed(path: Path, view: ConfigView, report: ConfigFindings) -> None:
    block = _block_of(path)
    if (block is not None and block.style == "model") or path[-1] in MONITORS:
        only_trainer = path in TRAINER_FILLS or path in CONSTANTS
        key = "auto_nobody_fills.trainer" if only_trainer else "auto_nobody_fills.default"
        report.add(key, path, fix=_instead(path), value=shown(default_of(path)))
    elif block is not None and block.path in ("expert_parallel", "data_types", "pipeline"):
        report.add("auto_nobody_fills.deepspeed", path)
    elif block is not None and path[-1] in block.keys and path[0] not in NAMES:
        report.add("auto_nobody_fills.text", path, fix=_instead(path))


def _block_of(path: Path) -> SchemaBlock | None:
    return blocks().get(dotted(path[:-1]))


def default_of(path: Path) -> object:
    """DeepSpeed's default for a key, None when it is unknown or null."""
    block = _block_of(path)
    key = block.spellings.get(str(path[-1])) if block else None
    return block.keys[key].get("default") if block and key else None


UNKNOWN = object()


def check_against(view: ConfigView, report: ConfigFindings) -> None:
    """Check what the file and the flags say about the same thing."""
    flags = view.flags
    if flags is None:
        return
    for path, name, value in _pairs(flags, view.world_size):
        ours = view.raw(*path)
        # A mismatch is `ds_val is not None and ds_val != hf_val`, so 1 and true or 1 and 1.0 are the same.
        if value is UNKNOWN or ours in (MISSING, None, AUTO) or ours == value:
            continue
        if path[-1] == "enabled" and isinstance(ours, str):
            continue  # its type is wrong, which structure.py reports
        flag: str = flags.where(name)
        if name not in flags.given:
            flag = text_of("conflicts_with_flag.default", flag=flag)
        said = shown(bool(ours) if name in ("fp16", "bf16") else ours)
        repair = f"--{'global-batch-size' if name == 'train_batch_size' else name} {said}"
        repair = text_of("conflicts_with_flag.betas") if name == "adam_betas" else repair
        fix = text_of("conflicts_with_flag.repair", key=path[-1], flag=repair)
        report.add("conflicts_with_flag", path, fix=fix, ours=shown(ours), flag=flag, value=shown(value))


def _pairs(flags: TrainingFlags, world_size: int | None) -> list[tuple[Path, str, Any]]:
    """(path in the file, flag, value the Trainer expects there) for everything that it compares."""
    table = toml_beside(__file__)
    own = {"flag": lambda name: flags.values.get(name, UNKNOWN), "on": flags.values.get, "given": flags.given}
    python = {"int": int, "bool": bool, "ceil": math.ceil}
    names = SubjectNames(flags, table["terms"], unknown=UNKNOWN, world_size=world_size, **own, **python)
    return [(tuple(key.split(".")), flag, evaluate(value, names)) for key, (flag, value) in table["pairs"].items()]
