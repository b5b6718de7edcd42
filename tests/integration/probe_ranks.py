"""`probe_ranks OUT`, on two ranks: probes of models sharded by ZeRO-3, one of which raises on a single rank."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.utils import logger
from peft import LoraConfig, get_peft_model
from transformers import (
    DbrxConfig,
    DbrxForCausalLM,
    Gemma3nForCausalLM,
    Gemma3nTextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LongcatFlashConfig,
    LongcatFlashForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

from dsrun.train.base.distributed import destroy_process_group, init_process_group, world_from_env
from dsrun.train.loop.engine import prepare_ops
from dsrun.train.packing.probe import probe
from tests.integration.as_rank import run_to_the_end

SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
# Its experts read the weights of a module below them; Gemma 3n's layers call methods of a module that reads its own.
DBRX = DbrxConfig(
    vocab_size=64, d_model=32, n_heads=4, n_layers=2, max_seq_len=64,
    attn_config={"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8},
    ffn_config={"hidden_size": 32, "ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
)  # fmt: skip
GEMMA = {
    "vocab_size_per_layer_input": 64, "hidden_size_per_layer_input": 8, "head_dim": 8, "num_kv_shared_layers": 0,
    "laurel_rank": 8, "activation_sparsity_pattern": None, "pad_token_id": None,
}  # fmt: skip
ROUTED = {
    "vocab_size": 64, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 4, "num_layers": 1,
    "n_routed_experts": 4, "zero_expert_num": 2, "moe_topk": 2, "ffn_hidden_size": 32, "q_lora_rank": 8,
    "expert_ffn_hidden_size": 16, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8,
    "head_dim": 8,
}  # fmt: skip
CONFIG: dict[str, Any] = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}


def sharded(kind: Any, config: Any) -> Any:
    with deepspeed.zero.Init(config_dict_or_path=CONFIG):
        model = kind(config)
    torch.manual_seed(0)
    for each in model.parameters():
        with deepspeed.zero.GatheredParameters([each], modifier_rank=0):
            each.data.normal_(std=0.1)
    return model


def with_failure(model: Any, error: Exception) -> Any:
    """Raises in the second of three layers, while what is around it is gathered."""

    def fail(*_: Any) -> None:
        raise error

    model.model.layers[1].mlp.register_forward_pre_hook(fail)
    return model


def found(model: Any) -> dict[str, Any]:
    verdict = probe(model)
    gathered = [name for name, each in model.named_parameters() if hasattr(each, "ds_id") and each.numel()]
    # What every save does, and raises while another context is open.
    for each in model.parameters():
        with deepspeed.zero.GatheredParameters([each], modifier_rank=0):
            pass
    return {**asdict(verdict), "gathered": gathered}


def main(out: str) -> None:
    logger.setLevel("ERROR")
    world = world_from_env(use_cpu=True)
    prepare_ops(CONFIG, world, notify=lambda _: None)
    init_process_group(world, deepspeed=True)
    llama = LlamaConfig(**SIZES)
    longcat = LongcatFlashConfig(**ROUTED)
    models = {
        "whole": sharded(LlamaForCausalLM, llama),
        "all raise": with_failure(sharded(LlamaForCausalLM, llama), RuntimeError("not here")),
        "one raises": sharded(LlamaForCausalLM, llama),
        "one is full": sharded(LlamaForCausalLM, llama),
        "router": sharded(LongcatFlashForCausalLM, longcat),
        "experts": sharded(MixtralForCausalLM, MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2)),
        "reads another's": sharded(DbrxForCausalLM, DBRX),
        "not called": sharded(Gemma3nForCausalLM, Gemma3nTextConfig(**SIZES, **GEMMA)),
    }
    if world.rank == 1:
        with_failure(models["one raises"], RuntimeError("on one rank"))
        with_failure(models["one is full"], torch.OutOfMemoryError("CUDA out of memory"))
    adapters = LoraConfig(r=2, target_modules=["q_proj"], target_parameters=["mlp.experts.gate_up_proj"])
    models["lora on experts"] = get_peft_model(models["experts"], adapters)
    Path(f"{out}-{world.rank}").write_text(json.dumps({name: found(model) for name, model in models.items()}))
    destroy_process_group()


if __name__ == "__main__":
    run_to_the_end(main, *sys.argv[1:])
