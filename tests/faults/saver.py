"""A run that does little but save: a tiny model under a real engine, a checkpoint after every step.

Its ranks are forked from a process that has the heavy imports done, so that hundreds of deaths take minutes.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Seq2SeqTrainingArguments, TrainerCallback, set_seed

from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.runs.folder import RunFolder
from dsrun.train.base import distributed
from dsrun.train.checkpoint.checkpointing import CheckpointingTrainer, SavingPolicy
from dsrun.train.checkpoint.resume import find_checkpoint
from dsrun.train.loop import engine

ROWS = [{"input_ids": [(i * 7 + j) % 61 + 2 for j in range(8)]} for i in range(16)]


def import_everything() -> None:
    """Also what DeepSpeed imports while it builds an engine, torch._inductor in the first place."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    importlib.import_module("deepspeed.runtime.zero.muon.original_muon")
    importlib.import_module("transformers.integrations.deepspeed")


class Saver(CheckpointingTrainer):
    """Nothing but the checkpoints of dsrun's Trainer."""

    def __init__(self, *, report: Callable[[str], None], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.report = report
        self.interrupted = False
        self.seconds_not_training = 0.0

    def on_checkpoint(self, phase: str, folder: Path, seconds: float, **details: Any) -> None:
        self.report(f"{phase} {folder.name.rpartition('-')[2]} {seconds:.4f} {details.get('written_s', 0):.4f}")


class _Weights(TrainerCallback):
    """After each step: a digest of this rank's weights, by which two runs of one step are compared."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self.report = report

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        digest = hashlib.sha256()
        for parameter in model.parameters():
            shard = getattr(parameter, "ds_tensor", parameter)
            digest.update(shard.detach().contiguous().view(torch.uint8).numpy().tobytes())
        self.report(f"weights {state.global_step} {digest.hexdigest()[:16]}")


def build(*, hidden: int = 32, layers: int = 2) -> LlamaForCausalLM:
    """A Llama with dropout's randomness in it, so that the generators' states matter."""
    config = LlamaConfig(
        vocab_size=64, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers,
        num_attention_heads=4, max_position_embeddings=64, attention_dropout=0.1,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def train(
    run: Path, *, stage: str, steps: int, report: Callable[[str], None], background: bool = False,
    hidden: int = 32, layers: int = 2, keep: int = 3, save_steps: int = 1,
) -> None:  # fmt: skip
    """One rank: join, go on from the newest whole checkpoint, train to `steps` with a save every so many."""
    folder = RunFolder(run)
    deepspeed = engine.configuration(TrainSpec(zero=stage), {}, hidden)
    world = distributed.world_from_env(use_cpu=True)
    if deepspeed is not None:
        engine.prepare_ops(deepspeed, world, notify=report)
    distributed.init_process_group(world, deepspeed=deepspeed is not None)
    facts = {"world_size": world.size, "zero_stage": int(stage)}
    arguments = Seq2SeqTrainingArguments(
        output_dir=str(run), use_cpu=True, deepspeed=deepspeed, max_steps=steps, save_steps=save_steps,
        per_device_train_batch_size=2, learning_rate=1e-3, report_to="none", disable_tqdm=True,
        logging_strategy="no", bf16=False, ddp_backend=None if deepspeed else "gloo", seed=7,
    )  # fmt: skip
    set_seed(7)
    start = find_checkpoint(TrainSpec(), folder, facts=facts, notify=report)
    trainer = Saver(
        report=report, model=build(hidden=hidden, layers=layers), args=arguments, train_dataset=ROWS,
        data_collator=_collate, callbacks=[_Weights(report)],
    )  # fmt: skip
    trainer.keep_checkpoints(SavingPolicy(run=folder, keep=keep, background=background, facts=facts))
    report(f"start {start.name.rpartition('-')[2] if start else 0}")
    trainer.train(resume_from_checkpoint=str(start) if start else None)
    report("end")
    distributed.destroy_process_group()


def _collate(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    ids = torch.tensor([row["input_ids"] for row in rows])
    return {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)}


def as_rank(rank: int, size: int, port: int) -> None:
    """The variables that torchrun sets."""
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), DS_ACCELERATOR="cpu",
    )  # fmt: skip
