"""Build one engine after another and note what each holds: `held_states.py CASES OUT`, on the ranks of one group.

A case is a dict of kind, size, stage, offload, precision, lora and sums (the format in which gradients are summed); OUT
gets, per case and rank, the bytes of the tensors that hold parameters, gradients, master weights and optimizer states
in an optimizer step of two micro batches.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path

import deepspeed
import torch
from deepspeed.utils import logger
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM
from transformers.integrations.deepspeed import HfDeepSpeedConfig, unset_hf_deepspeed_config

from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.train.base.distributed import destroy_process_group, init_process_group, world_from_env
from dsrun.train.loop import engine as engines
from dsrun.train.model.adapters import add_lora
from dsrun.zero.generate.config import generate
from dsrun.zero.generate.spec import from_offload
from tests.integration.as_rank import run_to_the_end
from tests.integration.memory_models import CONFIGS

ACCUMULATION = 2
LENGTH = 8


def main(cases: str, out: str) -> None:
    logger.setLevel("ERROR")
    world = world_from_env(use_cpu=True)
    places = {"offload_optimizer": {"device": "cpu"}}
    engines.prepare_ops({"zero_optimization": places, "optimizer": {"type": "AdamW"}}, world, notify=lambda _: None)
    init_process_group(world, deepspeed=True)
    held = []
    for case in json.loads(Path(cases).read_text()):
        held.append(held_by(case, world.size))
        unset_hf_deepspeed_config()
        gc.collect()
    Path(f"{out}-{world.rank}").write_text(json.dumps(held))
    destroy_process_group()


def held_by(case: dict, world: int) -> dict[str, int]:
    torch.manual_seed(0)
    return plain(case) if case["stage"] == 0 else under_deepspeed(case, world)


def make_model(case: dict):
    config = AutoConfig.for_model(**CONFIGS[case["kind"], case["size"]])
    config.use_cache = False
    seq2seq = case["kind"] == "t5"
    model = (AutoModelForSeq2SeqLM if seq2seq else AutoModelForCausalLM).from_config(config, dtype=torch.float32)
    if case["lora"]:
        return add_lora(model, TrainSpec(lora=case["lora"]), "seq2seq" if seq2seq else "causal-lm")
    return model


def groups(model) -> list[dict]:
    """The Trainer's parameter groups: no weight decay for norms and biases."""
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    small = [p for _, p in trained if len(getattr(p, "ds_shape", p.shape)) == 1]
    rest = [p for _, p in trained if len(getattr(p, "ds_shape", p.shape)) > 1]
    return [group for group in ({"params": rest}, {"params": small, "weight_decay": 0.0}) if group["params"]]


def losses(model, vocabulary: int):
    for _ in range(ACCUMULATION):
        ids = torch.randint(3, vocabulary, (1, LENGTH))
        yield model(input_ids=ids, labels=ids).loss / ACCUMULATION


def size(tensors) -> int:
    """Bytes of the distinct storages behind `tensors`."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors if t is not None}
    return sum(storages.values())


def moments(optimizer) -> list[torch.Tensor]:
    return [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]


def plain(case: dict) -> dict[str, int]:
    model = DistributedDataParallel(make_model(case))
    optimizer = torch.optim.AdamW(groups(model), lr=1e-4, foreach=False)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=case["precision"] == "bf16"):
        for loss in losses(model, model.module.config.vocab_size):
            loss.backward()
    gradients = size(p.grad for p in model.parameters())
    optimizer.step()
    return {
        "parameters": size(model.parameters()),
        "gradients": gradients,
        "master": 0,
        "optimizer": size(moments(optimizer)),
    }


def under_deepspeed(case: dict, world: int) -> dict[str, int]:
    config = json_for(case, world)
    keep = HfDeepSpeedConfig(config) if case["stage"] == 3 else None
    model = make_model(case)
    del keep
    parts = groups(model)
    own = {} if "optimizer" in config else {"optimizer": torch.optim.AdamW(parts, lr=1e-4, foreach=False)}
    given = {} if own else {"model_parameters": parts}
    engine, *_ = deepspeed.initialize(model=model, config=config, **own, **given)
    for loss in losses(engine, model.config.vocab_size):
        engine.backward(loss)
        if engine.is_gradient_accumulation_boundary() == (case["stage"] > 1):
            gradients = size(gradient_tensors(model, engine.optimizer, case))
        engine.step()
    zero = engine.optimizer
    masters = zero.fp32_partitioned_groups_flat if case["stage"] == 3 else zero.single_partition_of_fp32_groups
    held = {
        "parameters": size(parameter_tensors(model, zero, case)),
        "gradients": gradients,
        "master": size(masters),
        "optimizer": size(moments(zero.optimizer)),
    }
    engine.destroy()
    return held


def parameter_tensors(model, zero, case: dict) -> list[torch.Tensor]:
    parameters = list(model.parameters())
    if case["stage"] < 3:
        return parameters
    shards = [p.ds_tensor for p in parameters]
    return [*shards, *(p.data for p in parameters if p.ds_persist)]


def gradient_tensors(model, zero, case: dict) -> list[torch.Tensor]:
    """Those after the step's last micro batch; ZeRO-1 holds most before, when nothing is reduced yet."""
    if case["stage"] == 1:
        fp32 = [flat.grad for flat in zero.single_partition_of_fp32_groups] if case["offload"] != "none" else []
        return [*(p.grad for p in model.parameters() if p.grad is not None), *fp32]
    if case["stage"] == 3:
        fp32 = [flat.grad for flat in zero.fp32_partitioned_groups_flat] if case["offload"] != "none" else []
        return [zero.grad_partitions_flat_buffer, *fp32]
    if case["offload"] == "none":
        return [t for group in zero.averaged_gradients.values() for t in group]
    return [flat.grad for flat in zero.single_partition_of_fp32_groups] + list(zero.accumulated_grads_in_cpu.values())


def json_for(case: dict, world: int) -> dict:
    """dsrun's configuration with the numbers that the Trainer would fill in."""
    config = CONFIGS[case["kind"], case["size"]]
    width = config.get("hidden_size") or config["d_model"]
    made = generate(from_offload(case["stage"], case["offload"]), hidden_size=width)
    made |= {
        "train_batch_size": ACCUMULATION * world,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": ACCUMULATION,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": case["precision"] == "bf16"},
        "fp16": {"enabled": False},
        "zero_allow_untested_optimizer": True,
        "data_types": {"grad_accum_dtype": case["sums"]},
    }
    if "optimizer" in made:
        made["optimizer"]["params"] = {"lr": 1e-4}
    return made


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    run_to_the_end(main, *sys.argv[1:])
