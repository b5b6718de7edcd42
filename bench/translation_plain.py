"""The rival of bench/translation.py: Seq2SeqTrainer as the documentation of transformers and run_translation.py use it.

`python -m bench.translation_plain RECIPE.json`, where the recipe has the fields of `bench.translation_runs.Recipe`. It
writes what dsrun's run folder has, under the same names: metrics.jsonl, predictions-test.jsonl and model/.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from datasets import load_dataset
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
)


class Recorder(TrainerCallback):
    """Notes the log lines with their times."""

    def __init__(self, file: Path) -> None:
        self.lines = file.open("a", buffering=1, encoding="utf-8")

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **_: Any) -> None:
        row = {"time": datetime.now(UTC).isoformat(), "step": state.global_step, **logs}
        self.lines.write(json.dumps(row) + "\n")


def main(recipe: dict[str, Any]) -> None:
    output, length = Path(recipe["output"]), recipe["max_length"]
    tokenizer = AutoTokenizer.from_pretrained(recipe["model"])
    model = AutoModelForSeq2SeqLM.from_pretrained(recipe["model"])
    rows = load_dataset(
        "json", data_files={part: recipe[part] for part in ("train", "test")}, cache_dir=output / "cache"
    )

    def tokenise(batch: dict[str, list[str]]) -> Any:
        return tokenizer(batch["source"], text_target=batch["target"], max_length=length, truncation=True)

    tokens = rows.map(tokenise, batched=True, remove_columns=["source", "target"])
    arguments = Seq2SeqTrainingArguments(
        output_dir=str(output),
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
        predict_with_generate=True,
        generation_max_length=length,
        **recipe["arguments"],
    )
    trainer = Seq2SeqTrainer(
        model,
        arguments,
        train_dataset=tokens["train"],
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model, label_pad_token_id=-100),
        processing_class=tokenizer,
        callbacks=[Recorder(output / "metrics.jsonl")],
    )
    trainer.train()
    trainer.save_model(str(output / "model"))
    predicted = trainer.predict(tokens["test"]).predictions
    texts = tokenizer.batch_decode(np.where(predicted < 0, tokenizer.pad_token_id, predicted), skip_special_tokens=True)
    with (output / "predictions-test.jsonl").open("w", encoding="utf-8") as out:
        for row, text in zip(rows["test"], texts, strict=True):
            line = {"source": row["source"], "prediction": text, "reference": row["target"]}
            out.write(json.dumps(line, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
