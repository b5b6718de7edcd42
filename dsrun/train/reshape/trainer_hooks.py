"""What an elastic resume needs of the Trainer: the engine put right after the load, and the best checkpoint loaded."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, set_seed

from dsrun.train.reshape.elastic import Adapted, adapt, discard
from dsrun.train.reshape.layout import Layout

logger = logging.getLogger(__name__)


class Reshaped(TrainerCallback):
    """Between the load of a converted checkpoint and the first step: the engine becomes an ordinary one.

    The conversion is removed once the run has a checkpoint of its own.
    """

    def __init__(self, trainer: Any, start: Adapted, *, run: Path) -> None:
        self.trainer = trainer
        self.start = start
        self.run = run

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.start.converted:
            settle(self.trainer.model_wrapped)
        if self.start.reseed:
            # Ranks that the checkpoint has random states for get those when the epoch begins, after this.
            set_seed(seed_of(args.seed, state.global_step, args.process_index))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            discard(self.run)


def seed_of(seed: int, step: int, rank: int) -> int:
    """A seed for a rank that joins at `step`: the same in every attempt, another on every rank and at every step."""
    digest = hashlib.sha256(f"{seed} {step} {rank}".encode()).digest()
    return int.from_bytes(digest[:4], "little")


def settle(engine: Any) -> None:
    """Undo what the universal load leaves in the engine.

    load_universal stays on, and the next load would look for a universal checkpoint. ZeRO-3's loader gives one and the
    same step to all groups: a tensor, as torch's optimizers need it, would be counted up once per group and step
    (stage3.py, load_hp_checkpoint_state_from_checkpoint_dir_stage3); an integer is right for DeepSpeed's Adam alone.
    """
    engine._config.load_universal_checkpoint = False
    base = engine.optimizer.optimizer
    if not type(base).__module__.startswith("torch.optim"):
        return
    on_device = any(group.get("fused") or group.get("capturable") for group in base.param_groups)
    for parameter, state in base.state.items():
        if "step" in state:
            place = parameter.device if on_device else torch.device("cpu")
            state["step"] = torch.tensor(float(state["step"]), dtype=torch.float32, device=place)


@contextmanager
def best_checkpoint(trainer: Any, *, run: Path) -> Iterator[None]:
    """Around the Trainer's load of the best checkpoint: it may be older than an elastic resume."""
    best = trainer.state.best_model_checkpoint
    if best is None or not trainer.is_deepspeed_enabled:
        yield
        return
    layout = Layout.wanted(trainer.split.world_size, trainer.ds_config)
    start = adapt(Path(best), layout, run=run, notify=logger.info, built=True)
    engine = trainer.model_wrapped
    engine._config.load_universal_checkpoint = start.converted
    trainer.state.best_model_checkpoint = str(start.path)
    try:
        yield
    finally:
        engine._config.load_universal_checkpoint = False
        trainer.state.best_model_checkpoint = best
        if trainer.args.should_save and start.converted:
            discard(run)
