"""`packed_engine OUT`, on two ranks: how far gradients of packed pairs under ZeRO-3 are from those of pairs alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.utils import logger, safe_get_full_grad
from transformers import AutoModelForSeq2SeqLM, BartConfig, T5Config

from dsrun.train.base.distributed import destroy_process_group, init_process_group, world_from_env
from dsrun.train.data.collate import PaddingCollator
from dsrun.train.loop.engine import prepare_ops
from dsrun.train.loss.model_loss import summed_cross_entropy
from dsrun.train.packing.encoder_decoder import install, pair_inputs
from tests.integration.as_rank import run_to_the_end

IDS = {"vocab_size": 48, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0, "d_model": 16}
LAYERS = {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
CONFIGS = [
    T5Config(**IDS, d_kv=8, d_ff=16, num_layers=2, num_heads=2, dropout_rate=0.0),
    BartConfig(
        **IDS, **LAYERS, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=24, dropout=0.0,
        bos_token_id=2, forced_eos_token_id=1,
    ),
]  # fmt: skip
# (source, target) tokens of the documents of each rank's row.
ROWS = [[(9, 6), (14, 12), (17, 6)], [(5, 20), (11, 2)]]
ENGINE: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.0, "torch_adam": True}},
}


def loss_of(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    logits = model(**{name: values for name, values in batch.items() if name != "labels"})["logits"]
    return summed_cross_entropy(logits, batch["labels"], shifted=False)


def difference(config: Any, rank: int) -> list[float]:
    """Of the gradients of two steps, an evaluation without packing between them; as a share of their norm."""
    torch.manual_seed(0)
    model = AutoModelForSeq2SeqLM.from_config(config).train()
    rows = [
        [{"input_ids": ids[:source], "labels": ids[source:]} for source, target in row
         for ids in [torch.randint(3, 48, (source + target,)).tolist()]]
        for row in ROWS
    ]  # fmt: skip
    collator = PaddingCollator(0, seq2seq=True, model=model)
    every = [collator([sample]) for row in rows for sample in row]
    sum(loss_of(model, batch) for batch in every).backward()
    # DeepSpeed takes the mean over ranks.
    alone = torch.cat([each.grad.flatten() for each in model.parameters()]) / len(ROWS)
    model.zero_grad()
    packed = pair_inputs([rows[rank]], 0, collator.decoder_input_ids)
    install(model)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=ENGINE)
    found = []
    for _ in range(2):
        engine.backward(loss_of(engine, packed))
        gradients = torch.cat([safe_get_full_grad(each).flatten() for each in model.parameters()])
        found.append(float((gradients - alone).norm() / alone.norm()))
        engine.step()
        with torch.no_grad():
            loss_of(engine, every[0])
    engine.destroy()
    return found


def main(out: str) -> None:
    logger.setLevel("ERROR")
    world = world_from_env(use_cpu=True)
    # Or DeepSpeed compiles its shared-memory collectives, which training does not use.
    prepare_ops(ENGINE, world, notify=lambda _: None)
    init_process_group(world, deepspeed=True)
    found = {config.model_type: difference(config, world.rank) for config in CONFIGS}
    Path(f"{out}-{world.rank}").write_text(json.dumps(found))
    destroy_process_group()


if __name__ == "__main__":
    run_to_the_end(main, *sys.argv[1:])
