"""The peers of the ladder: Trainer as its documentation shows it, and TRL's SFTTrainer with packing.

One rank of `torchrun … -m bench.ladder.plain RECIPE.json`; the recipe has `model`, `data`, `output`, `kind` (trainer or
trl), `gpu` and `arguments`, which are those of transformers. What a measurement needs is added: each step's time, the
real tokens and the cells of its tensors so far and the peak of the resident memory, in metrics-RANK.jsonl.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from datasets import load_dataset
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from dsrun.system.process.process_end import end

PADDING = 0
"""The id that fills input_ids; no sample has it."""
IGNORED = -100


class Counted:
    """Counts the tokens of the batches that are trained on: of sources and targets, or of causal samples."""

    tokens = cells = 0

    def training_step(self, model: Any, inputs: Any, *rest: Any) -> Any:
        ids = inputs["input_ids"]
        self.tokens += int((ids != PADDING).sum())
        self.cells += ids.numel()
        if self.model.config.is_encoder_decoder:
            self.tokens += int((inputs["labels"] != IGNORED).sum())
            self.cells += inputs["labels"].numel()
        return super().training_step(model, inputs, *rest)


class PlainTrainer(Counted, Trainer):
    pass


class Recorder(TrainerCallback):
    """Notes every step of this rank."""

    def __init__(self, file: Path, trainer: Any) -> None:
        self.lines, self.trainer = file.open("w", buffering=1, encoding="utf-8"), trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        row = {"time": datetime.now(UTC).isoformat(), "step": state.global_step, "tokens": self.trainer.tokens}
        self.lines.write(json.dumps({**row, "cells": self.trainer.cells, "host_memory_peak": peak}) + "\n")


def main(recipe: dict[str, Any]) -> None:
    output = Path(recipe["output"])
    make = _trl_trainer if recipe["kind"] == "trl" else _trainer
    rows = load_dataset("json", data_files=recipe["data"], cache_dir=str(output / "cache"), split="train")
    trainer = make(recipe, {"output_dir": str(output), "use_cpu": not recipe["gpu"], **recipe["arguments"]}, rows)
    trainer.add_callback(Recorder(output / f"metrics-{os.environ['RANK']}.jsonl", trainer))
    trainer.train()


def _trainer(recipe: dict[str, Any], arguments: dict[str, Any], rows: Any) -> Any:
    # Before the model, as the documentation has it: DeepSpeed's integration looks at the arguments when it is loaded.
    made = TrainingArguments(**arguments)
    pairs = AutoConfig.from_pretrained(recipe["model"]).is_encoder_decoder
    model: Any = (AutoModelForSeq2SeqLM if pairs else AutoModelForCausalLM).from_pretrained(recipe["model"])
    tokenizer = AutoTokenizer.from_pretrained(recipe["model"])
    # It pads labels, too, for both kinds of models.
    collate = DataCollatorForSeq2Seq(tokenizer, model=model if pairs else None, label_pad_token_id=IGNORED)
    return PlainTrainer(model, made, train_dataset=rows, data_collator=collate, processing_class=tokenizer)


def _trl_trainer(recipe: dict[str, Any], arguments: dict[str, Any], rows: Any) -> Any:
    from trl import SFTConfig, SFTTrainer

    class PackingTrainer(Counted, SFTTrainer):
        pass

    loading = {"attn_implementation": recipe["attention"]} if recipe["attention"] else None
    # TRL recomputes activations by default, which nobody else here does.
    arguments = {**arguments, "gradient_checkpointing": False}
    made = SFTConfig(packing=True, max_length=recipe["row_tokens"], model_init_kwargs=loading, **arguments)
    return PackingTrainer(recipe["model"], made, train_dataset=rows.remove_columns("labels"))


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    # As a rank of dsrun ends: gloo's threads may still hold a tensor, and Python would abort when they let go of it.
    end(0)
