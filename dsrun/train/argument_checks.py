"""Flags of the stock Trainer that would fail once everything is loaded, or do nothing: said before that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

import torch
from transformers import Trainer, get_scheduler
from transformers.utils import is_liger_kernel_available

from dsrun.errors import MissingError, UsageError
from dsrun.train.loop.engine import stage_of
from dsrun.train.model.hub import HTTP_ERROR, is_unreachable

# Where the length of the run follows from the data; the schedules look at it only to be longer than their parts.
SOME_STEPS = 10**6


def check(
    arguments: Any, model: Any, deepspeed: dict[str, Any] | None, *, say: Callable[[str], None]
) -> None:
    """Try the optimizer, the schedule and the noise that were asked for; `deepspeed` may bring the first two itself.

    Raises UsageError, or MissingError where a package is not installed; `say` gets what has no effect.
    """
    blocks = deepspeed or {}
    if deepspeed is not None:
        _refuse_other_precision(arguments)
    if "optimizer" not in blocks:
        _try_optimizer(arguments, model, stage_of(deepspeed), say)
    if "scheduler" not in blocks:
        _try_schedule(arguments)
    _try_noise(arguments, model)
    if arguments.use_liger_kernel and not is_liger_kernel_available():
        raise MissingError(
            "--use_liger_kernel: liger-kernel is not installed", fix="pip install liger-kernel"
        )


@contextmanager
def in_a_line(what: str) -> Iterator[None]:
    """Complaints of the stock classes about what they are given, as errors of dsrun: no restart mends them."""
    try:
        yield
    except (ImportError, ValueError, TypeError) as error:
        line = _first_line(error)
        # Some tell of a package that is not installed by a ValueError.
        missing = isinstance(error, ImportError) or "install" in line.lower()
        raise (MissingError if missing else UsageError)(f"{what}: {line}") from error
    except (HTTP_ERROR, OSError) as error:
        line = _first_line(error)
        if not (isinstance(error, HTTP_ERROR) or is_unreachable(error)):
            if isinstance(error, OSError) and error.errno is None:
                # transformers' own, about the content of a file (--generation_config); the system's have a number.
                raise UsageError(f"{what}: {line}") from error
            raise
        raise MissingError(
            f"{what}: the Hub did not answer as it should: {line}",
            fix="check the network and the token, or leave --push_to_hub out and upload the model afterwards",
            cause="hf_gated_or_offline",
        ) from error


def _refuse_other_precision(arguments: Any) -> None:
    """HfTrainerDeepSpeedConfig.trainer_config_process takes, say, fp16_full_eval for fp16."""
    for name in ("bf16", "fp16"):
        if getattr(arguments, f"{name}_full_eval") and not getattr(arguments, name):
            raise UsageError(
                f"--{name}_full_eval: with DeepSpeed the Trainer would also train in {name}",
                fix=f"leave it out, as evaluation is in the precision of training, or use --{name}",
            )


def _try_optimizer(arguments: Any, model: Any, stage: int, say: Callable[[str], None]) -> None:
    name = arguments.optim.value
    with in_a_line(f"--optim {name}"):
        kind, options = Trainer.get_optimizer_cls_and_kwargs(arguments, model)
    if stage and issubclass(kind, torch.optim.Adagrad):
        # DeepSpeedZeroOptimizer.initialize_optimizer_states makes a new one of a single group, and then looks for both.
        raise UsageError(
            f"--optim {name}: ZeRO loses its parameter groups and fails at the first step",
            fix="use --zero 0, or another optimizer",
        )
    if arguments.optim_args:
        plain = copy(arguments)
        plain.optim_args = None
        if Trainer.get_optimizer_cls_and_kwargs(plain, model) == (kind, options):
            say(f"--optim-args {arguments.optim_args} has no effect on --optim {name}")


def _try_schedule(arguments: Any) -> None:
    name = arguments.lr_scheduler_type.value
    steps = arguments.max_steps if arguments.max_steps > 0 else SOME_STEPS
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=arguments.learning_rate)
    with in_a_line(f"--lr-scheduler-type {name}"):
        get_scheduler(
            arguments.lr_scheduler_type,
            optimizer=optimizer,
            num_warmup_steps=arguments.get_warmup_steps(steps),
            num_training_steps=steps,
            scheduler_specific_kwargs=arguments.lr_scheduler_kwargs,
        )


def _try_noise(arguments: Any, model: Any) -> None:
    """transformers.integrations.neftune hooks the model's own embedding; T5, BART and others have each stack look its
    tokens up in another module with the same weights, so that no noise would ever be added."""
    if arguments.neftune_noise_alpha is None or not model.config.is_encoder_decoder:
        return
    if model.get_encoder().get_input_embeddings() is not model.get_input_embeddings():
        raise UsageError(
            f"--neftune-noise-alpha has no effect on {model.config.model_type} models: the Trainer adds the noise to an"
            " embedding that they do not use",
            fix="leave it out",
        )


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
