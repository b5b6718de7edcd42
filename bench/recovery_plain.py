"""The rival of bench/recovery.py: a Trainer script as the documentation of transformers shows it, under plain DDP.

`recovery_plain.py DIR MODEL STEPS SAVE` trains in DIR and goes on from the newest checkpoint there. What a measurement
needs is added: process ids, and a time for each step. DDP and not DeepSpeed, which takes longer to import.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from bench.recovery_runs import BATCH, PLAIN_STEPS, ROWS, TOKENS


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Random tokens, the same for everybody."""

    def __init__(self, vocabulary: int) -> None:
        self.tokens = torch.randint(vocabulary, (ROWS, TOKENS), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[row], "labels": self.tokens[row]}


class Clock(TrainerCallback):
    """Notes every step of rank 0, as dsrun's metrics.jsonl does."""

    def __init__(self, folder: Path) -> None:
        self.lines = (folder / PLAIN_STEPS).open("a", buffering=1)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            self.lines.write(json.dumps({"step": state.global_step, "time": time.time(), "pid": os.getpid()}) + "\n")


def main(folder: Path, model: str, steps: int, save: int) -> None:
    (folder / f"rank-{os.environ['RANK']}.pid").write_text(str(os.getpid()))
    args = TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        max_steps=steps,
        per_device_train_batch_size=BATCH // int(os.environ["WORLD_SIZE"]),
        learning_rate=1e-3,
        logging_steps=1,
        save_steps=save,
        save_total_limit=3,
        disable_tqdm=True,
        report_to="none",
    )
    config = AutoConfig.from_pretrained(model)
    trainer = Trainer(
        AutoModelForCausalLM.from_pretrained(model),
        args,
        train_dataset=Rows(config.vocab_size),
        callbacks=[Clock(folder)],
    )
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(folder)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
