"""What the linter is held against: DeepSpeed's own reader, and everything that the HF Trainer does before it.

Nothing is imitated: the configs go through DeepSpeedConfig, HfTrainerDeepSpeedConfig, accelerate's DeepSpeedPlugin and
its `_prepare_deepspeed`. Only `deepspeed.initialize` at its end is cut short after reading the config, because building
an engine for each of a thousand configs would take an hour; test_lint_engines.py builds some.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dsrun.zero.lint.codes import CODES
from dsrun.zero.lint.config_check import check
from dsrun.zero.view import TrainingFlags

HIDDEN_SIZE = 64
STEPS = 100
COMPARED = (
    ("per_device_train_batch_size", "gradient_accumulation_steps"),
    ("max_grad_norm", "learning_rate"),
    ("adam_beta1", "adam_beta2"),
    ("adam_epsilon", "weight_decay"),
    ("warmup_steps", "max_steps"),
    ("fp16", "bf16"),
    ("fp16_full_eval", "bf16_full_eval"),
)


class ReadOn(Exception):
    """DeepSpeed has read the config: what comes after it is not asked."""


@cache
def scratch() -> Path:
    """A file to put configs into."""
    return Path(tempfile.mkdtemp(prefix="dsrun-lint-")) / "ds.json"


@cache
def quiet() -> None:
    """DeepSpeed and accelerate warn about much of what is tried here."""
    for variable in [each for each in os.environ if each.startswith("ACCELERATE_")]:
        del os.environ[variable]
    import transformers
    from deepspeed.utils import logger

    for each in (logger, logging.getLogger("accelerate"), logging.getLogger("transformers")):
        each.setLevel(logging.CRITICAL)
    transformers.logging.set_verbosity_error()


def deepspeed_says(config: str | dict[str, Any]) -> str:
    """The error that DeepSpeedConfig ends in when it reads this text (as a file) or dict, else an empty text."""
    quiet()
    from deepspeed.runtime.config import DeepSpeedConfig

    if isinstance(config, str):
        scratch().write_text(config, encoding="utf-8")
    try:
        DeepSpeedConfig(str(scratch()) if isinstance(config, str) else config)
    except Exception as error:  # whatever it is, the config is refused
        return f"{type(error).__name__}: {error}"
    return ""


@cache
def arguments(bf16: bool) -> Any:
    """Training arguments on one rank."""
    from transformers import TrainingArguments

    return TrainingArguments(
        output_dir=str(scratch().parent), use_cpu=True, per_device_train_batch_size=4, max_steps=STEPS,
        gradient_accumulation_steps=2, warmup_steps=10, report_to=[], bf16=bf16,
    )  # fmt: skip


@cache
def flags(bf16: bool) -> TrainingFlags:
    """The same arguments as the linter takes them."""
    names = [name for pair in COMPARED for name in pair]
    values = {name: getattr(arguments(bf16), name) for name in names}
    return TrainingFlags(values, frozenset(names))


def trainer_says(config: str, *, bf16: bool = False) -> str:
    """The error that a Trainer on one rank ends in before DeepSpeed builds its engine, else an empty text."""
    quiet()
    scratch().write_text(config, encoding="utf-8")
    try:
        _as_the_trainer(str(scratch()), arguments(bf16))
    except ReadOn:
        return ""
    except Exception as error:  # whatever it is, the config is refused
        return f"{type(error).__name__}: {error}"
    raise AssertionError("accelerate did not come to deepspeed.initialize")


def _as_the_trainer(path: str, args: Any) -> None:
    """TrainingArguments.__post_init__, deepspeed_init and Accelerator._prepare_deepspeed, in their order."""
    import deepspeed
    import torch
    from accelerate import Accelerator
    from accelerate import accelerator as stock
    from accelerate.utils import DeepSpeedPlugin, DummyOptim, DummyScheduler
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig, deepspeed_optim_sched

    hf = HfTrainerDeepSpeedConfig(path)
    hf.trainer_config_process(args)
    plugin = DeepSpeedPlugin(hf_ds_config=hf)
    plugin.set_mixed_precision("bf16" if args.bf16 else "no")
    model = torch.nn.Linear(2, 2)
    model.config = SimpleNamespace(hidden_size=HIDDEN_SIZE)
    hf.trainer_config_finalize(args, model, STEPS)
    trainer = SimpleNamespace(create_optimizer=lambda: torch.optim.AdamW(model.parameters()))
    optimizer, scheduler = deepspeed_optim_sched(trainer, hf, args, STEPS, list(model.parameters()))
    assert isinstance(optimizer, DummyOptim | torch.optim.Optimizer)
    assert isinstance(scheduler, DummyScheduler | None)
    accelerator = SimpleNamespace(
        fp8_backend=None, deepspeed_plugin=plugin, parallelism_config=None, split_batches=False,
        gradient_accumulation_steps=plugin.get_value("gradient_accumulation_steps"), num_processes=1,
        device=torch.device("cpu"), state=SimpleNamespace(),
    )  # fmt: skip
    whole, on_cpu = deepspeed.initialize, stock.map_pytorch_optim_to_deepspeed
    deepspeed.initialize = _read_only
    # It would compile CPU Adam: whether this machine can is no verdict on the configuration.
    stock.map_pytorch_optim_to_deepspeed = lambda optimizer: optimizer
    try:
        Accelerator._prepare_deepspeed(accelerator, model, *[each for each in (optimizer, scheduler) if each])
    finally:
        deepspeed.initialize = whole
        stock.map_pytorch_optim_to_deepspeed = on_cpu


def _read_only(config_params: dict[str, Any], **_: Any) -> None:
    """The first thing that deepspeed.initialize does."""
    from deepspeed.runtime.config import DeepSpeedConfig

    DeepSpeedConfig(config_params)
    raise ReadOn


def linter_says(text: str, target: str | None, *, bf16: bool = False, knowing: bool = True) -> list[str]:
    """The errors that should come before the engine, as `code where: message`.

    Without `knowing` the linter is told neither the number of ranks nor the training flags.
    """
    known: dict[str, Any] = {}
    if knowing:
        known = {"world_size": 1, "against": flags(bf16) if target == "trainer" else None}
    found = check(text, target=target, **known)
    later = ("DeepSpeed, in its engine", "`dsrun train`")
    early = [each for each in found if each.level == "error" and CODES[each.code].stops not in later]
    return [f"{each.code} {each.where}: {each.message}" for each in early]


def disagreement(text: str, target: str) -> str:
    """An empty text when linter and DeepSpeed (or the Trainer) give the same verdict."""
    truth = trainer_says(text) if target == "trainer" else deepspeed_says(text)
    ours = linter_says(text, target)
    if bool(truth) == bool(ours):
        return ""
    return f"{target}: {text}\n  truth: {truth[:300] or 'runs'}\n  linter: {ours or 'no error'}"


def as_text(config: Any) -> str:
    """JSON as people write it."""
    return json.dumps(config, indent=2)
