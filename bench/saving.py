"""What a save costs: integrity (CRC-32 and manifest) against torch.save and fsync, and the wait that --async-save
leaves of it. Everything that is compared is done in turn within one process."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Seq2SeqTrainingArguments, TrainerCallback

from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.runs.checksum import ChecksumFile, ChecksumPool
from dsrun.runs.folder import RunFolder
from dsrun.runs.manifest import write_manifest
from dsrun.runs.records import sync_file
from dsrun.system.net import free_port
from dsrun.train.base.distributed import destroy_process_group, init_process_group, world_from_env
from dsrun.train.checkpoint.checkpointing import CheckpointingTrainer, SavingPolicy
from dsrun.train.checkpoint.snapshot import write_torch
from dsrun.train.loop import engine

ROUNDS = 9
TENSORS = 67
"""Of 4 MiB each: 281 MB, as a rank of a model with 60 million parameters saves."""
FILE = "optimizer.pt"
GOAL = 1.1

STAGE = "2"
SAVES = 8
STEPS = 4
"""Between two saves, every second of which is asynchronous."""
MODEL = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 1, "num_attention_heads": 8}
ASYNC_GOAL = 5
WRITTEN_S = 600.0
"""Of an asynchronous save, which takes a second."""

State = dict[str, torch.Tensor]


def plain(state: State, folder: Path) -> None:
    torch.save(state, folder / FILE)


def synced(state: State, folder: Path) -> None:
    plain(state, folder)
    sync_file(folder / FILE)


def sealed(state: State, folder: Path) -> None:
    """As dsrun.train.checkpoint.save does."""
    pool = ChecksumPool(folder)
    pool.expect(folder / FILE)
    with ChecksumFile(folder / FILE) as file:
        write_torch(state, file)
    pool.written(folder / FILE, file.entry)
    sums = pool.result()
    pool.close()
    write_manifest(folder, {}, sealed=sums)


WAYS: tuple[Callable[[State, Path], None], ...] = (plain, synced, sealed)


def main() -> int:
    """Print the medians, and whether the goals are met: a busy machine misses them by chance."""
    integrity()
    waits()
    return 0


def integrity() -> None:
    state = {str(number): torch.randn(1 << 20) for number in range(TENSORS)}
    costs: dict[str, list[tuple[float, float]]] = {way.__name__: [] for way in WAYS}
    for _ in range(ROUNDS):
        for way in WAYS:
            with tempfile.TemporaryDirectory() as folder:
                began, spent = time.perf_counter(), time.process_time()
                way(state, Path(folder))
                costs[way.__name__].append((time.perf_counter() - began, time.process_time() - spent))
    walls, cpus = ({name: median(row[at] for row in rows) for name, rows in costs.items()} for at in (0, 1))
    for name in costs:
        print(f"{name}: {walls[name]:.2f} s, {cpus[name]:.2f} CPU s")
    for kind, times in (("wall time", walls), ("CPU time", cpus)):
        ratio = times["sealed"] / times["synced"]
        print(f"sealed takes {ratio:.2f} × torch.save and fsync in {kind} (goal {GOAL}: {_met(ratio <= GOAL)})")


class InTurn(CheckpointingTrainer):
    """A Trainer whose saves are synchronous and asynchronous in turn; `waits` are their seconds, by kind."""

    interrupted = False
    seconds_not_training = 0.0

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.waits: dict[bool, list[float]] = {False: [], True: []}
        self.bytes = 0

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self.saving = replace(self.saving, background=not self.saving.background)
        super()._save_checkpoint(model, trial)

    def on_checkpoint(self, phase: str, folder: Path, seconds: float, **details: Any) -> None:
        if phase == "visible" and self.state.global_step < self.state.max_steps:
            self.waits[self.saving.background].append(seconds)
            self.bytes = details["bytes"]


class _Written(TrainerCallback):
    """Waits, outside of what is measured, until an asynchronous save is written before the next one is due."""

    trainer: InTurn

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        save = self.trainer._under_way
        deadline = time.monotonic() + WRITTEN_S
        while save and state.global_step % STEPS == STEPS - 2 and not save.is_sealed:
            if time.monotonic() > deadline:
                sys.exit(f"error: an asynchronous save is not written after {WRITTEN_S:g} s")
            time.sleep(0.01)


def waits() -> None:
    """How long training waits for a save of a ZeRO run on one rank."""
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1", DS_ACCELERATOR="cpu")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    config = engine.configuration(TrainSpec(zero=STAGE), {}, MODEL["hidden_size"])
    world = world_from_env(use_cpu=True)
    engine.prepare_ops(config, world, notify=lambda _: None)
    init_process_group(world, deepspeed=True)
    rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 4
    written = _Written()
    with tempfile.TemporaryDirectory() as folder:
        arguments = Seq2SeqTrainingArguments(
            output_dir=folder, use_cpu=True, deepspeed=config, max_steps=STEPS * (SAVES + 3), save_steps=STEPS,
            per_device_train_batch_size=1, report_to="none", disable_tqdm=True, logging_strategy="no", bf16=False,
        )  # fmt: skip
        model = LlamaForCausalLM(LlamaConfig(vocab_size=64, max_position_embeddings=64, **MODEL))
        written.trainer = trainer = InTurn(model=model, args=arguments, train_dataset=rows, callbacks=[written])
        trainer.keep_checkpoints(SavingPolicy(run=RunFolder(Path(folder)), keep=1, background=True))
        trainer.train()
    destroy_process_group()
    # The first of each kind makes buffers and files that later ones find.
    whole, rest = (median(trainer.waits[kind][1:]) for kind in (False, True))
    first = trainer.waits[True][0]
    print(f"ZeRO-{STAGE}, {trainer.bytes / 1e6:.0f} MB: training waits {whole:.2f} s, with --async-save {rest:.2f} s")
    print(
        f"({first:.2f} s the first time), {whole / rest:.1f} × shorter (goal {ASYNC_GOAL}: {_met(whole / rest >= 5)})"
    )


def _met(met: bool) -> str:
    return "met" if met else "missed"


if __name__ == "__main__":
    sys.exit(main())
