"""Engines from many configurations, one after another in one process group: `many_engines FILE`.

FILE holds [{"name", "config", "target"}, …]. Each engine takes one step on a tiny model: through deepspeed.initialize,
or, for the target "trainer", through the Hugging Face Trainer. Rank 0 writes what it saw to FILE.out: for each name the
classes, the stage, the loss, and whether the weights moved; or the error.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.utils import groups
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from dsrun.train.base.distributed import destroy_process_group, world_from_env
from dsrun.train.certify.rank import forget
from dsrun.train.loop.engine import prepare_ops
from tests.integration.as_rank import run_to_the_end

LENGTH = 16


def model(**kwargs: Any) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=LENGTH, bos_token_id=1, eos_token_id=1, pad_token_id=0,
        tie_word_embeddings=False,
    )  # fmt: skip
    return LlamaForCausalLM(config)


class Words(Dataset):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words = (torch.arange(LENGTH) * (index + 3)) % 61 + 2
        return {"input_ids": words, "labels": words}


def seen(engine: Any, loss: float, before: torch.Tensor, after: torch.Tensor) -> dict[str, Any]:
    return {
        "engine": type(engine).__name__,
        "optimizer": type(engine.optimizer).__name__,
        "basic": type(getattr(engine.optimizer, "optimizer", engine.optimizer)).__name__,
        "stage": int(engine.zero_optimization_stage()),
        "dtype": str(next(engine.module.parameters()).dtype),
        "loss": loss,
        "moved": bool((before != after).any()),
        "steps": engine.global_steps,
    }


def whole(module: Any, config: dict[str, Any]) -> torch.Tensor:
    """A weight with all its shards, on every rank: a matrix, or a norm where matrices are split among ranks."""
    layer = module.model.layers[0]
    weight = layer.input_layernorm.weight if "tensor_parallel" in config else layer.mlp.down_proj.weight
    with deepspeed.zero.GatheredParameters([weight]):
        return weight.detach().float().clone()


def alone(config: dict[str, Any]) -> dict[str, Any]:
    """One optimizer step as a program without the Trainer takes it."""
    engine, *_ = deepspeed.initialize(model=model(), config=config)
    before = whole(engine.module, config)
    words = Words()
    batch = engine.train_micro_batch_size_per_gpu()
    # Every engine is asked for two micro batches more than its accumulation: a warm-up's first rate is 0.
    for _ in range(3 * max(1, engine.gradient_accumulation_steps())):
        rows = [words[i] for i in range(batch)]
        ids = torch.stack([row["input_ids"] for row in rows])
        loss = engine(input_ids=ids, labels=ids).loss
        engine.backward(loss)
        engine.step()
    found = seen(engine, float(loss), before, whole(engine.module, config))
    engine.destroy()
    return found


def trained(config: dict[str, Any]) -> dict[str, Any]:
    """Three steps of the Hugging Face Trainer, which fills what says auto."""
    enabled = {name: config.get(name, {}).get("enabled") is True for name in ("bf16", "fp16")}
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, use_cpu=True, deepspeed=config, max_steps=3, per_device_train_batch_size=2,
            learning_rate=1e-3, report_to="none", save_strategy="no", disable_tqdm=True, **enabled,
        )  # fmt: skip
        trainer = Trainer(model=model(), args=arguments, train_dataset=Words())
        before = whole(trainer.model, config)
        loss = trainer.train().training_loss
        engine = trainer.model_wrapped
        found = seen(engine, loss, before, whole(engine.module, config))
        engine.destroy()
    return found


def main(file: str) -> None:
    world = world_from_env(use_cpu=True)
    # Without it DeepSpeed would compile its collectives through shared memory first: a minute.
    prepare_ops({}, world, notify=print)
    deepspeed.init_distributed(dist_backend="gloo")
    results = {}
    for case in json.loads(Path(file).read_text()):
        config = case["config"]
        prepare_ops(config, world, notify=lambda line: None)
        results[case["name"]] = (trained if case["target"] == "trainer" else alone)(config)
        forget()
        groups._ZERO_PARAM_INTRA_PARALLEL_GROUP = None
        if os.environ["RANK"] == "0":
            Path(file + ".out").write_text(json.dumps(results))
    destroy_process_group()


if __name__ == "__main__":
    run_to_the_end(main, sys.argv[1])
