"""One rank of a measured run: `memory_run.py CASE.json OUT`. Two optimizer steps with DeepSpeed, then the peak."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
from accelerate.utils import calculate_maximum_sizes
from deepspeed.runtime.zero.stage3 import model_to_params
from deepspeed.utils import logger
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM
from transformers.integrations.deepspeed import HfDeepSpeedConfig

from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.system.process.process_end import end
from dsrun.train.base.distributed import DistributedWorld, destroy_process_group, init_process_group, world_from_env
from dsrun.train.loop import engine as engines
from dsrun.train.loss.model_loss import summed_cross_entropy
from dsrun.train.model.adapters import add_lora
from dsrun.zero.generate.config import generate
from dsrun.zero.generate.spec import from_offload

STEPS = 2


def main(case_file: str, out: str) -> None:
    case = json.loads(Path(case_file).read_text())
    logger.setLevel("ERROR")
    world = world_from_env(use_cpu=not torch.cuda.is_available())
    config = configuration(case, world)
    engines.prepare_ops(config, world, notify=lambda _: None)
    init_process_group(world, deepspeed=True)
    found = {"baseline": peak_host(), "elements": sizes(case)}
    train(case, config, world)
    found["host"] = peak_host()
    if world.device == "cuda":
        found["gpu"] = torch.cuda.max_memory_reserved()
        free, total = torch.cuda.mem_get_info()
        found["context"] = total - free - torch.cuda.memory_reserved()
    Path(f"{out}-{world.rank}").write_text(json.dumps(found))
    destroy_process_group()


def peak_host() -> int:
    """Highest resident size of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def auto_class(case: dict[str, Any]) -> Any:
    return AutoModelForSeq2SeqLM if case["config"]["model_type"] == "t5" else AutoModelForCausalLM


def sizes(case: dict[str, Any]) -> dict[str, int]:
    """What the rivals' estimators look at: parameters, largest layer, and accelerate's total bytes in fp32."""
    with torch.device("meta"):
        model = auto_class(case).from_config(AutoConfig.for_model(**case["config"]))
    total = sum(p.numel() for p in model.parameters())
    _, largest = model_to_params(model)
    accelerate_total, _ = calculate_maximum_sizes(model)
    return {"parameters": total, "largest_layer": largest, "accelerate_bytes": accelerate_total}


def configuration(case: dict[str, Any], world: DistributedWorld) -> dict[str, Any]:
    width = case["config"].get("hidden_size") or case["config"]["d_model"]
    made = generate(from_offload(case["stage"], case["offload"]), hidden_size=width)
    made |= {
        "train_batch_size": case["micro_batch"] * world.size,
        "train_micro_batch_size_per_gpu": case["micro_batch"],
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": case["precision"] == "bf16"},
        "fp16": {"enabled": False},
        "zero_allow_untested_optimizer": True,
    }
    if "optimizer" in made:
        made["optimizer"]["params"] = {"lr": 1e-4}
    return made


def train(case: dict[str, Any], config: dict[str, Any], world: DistributedWorld) -> None:
    keep = HfDeepSpeedConfig(config) if case["stage"] == 3 else None
    model = auto_class(case).from_config(AutoConfig.for_model(**case["config"]), dtype=torch.float32)
    del keep
    model.config.use_cache = False
    if case["lora"]:
        model = add_lora(model, TrainSpec(lora=case["lora"]), "causal-lm")
    if case["checkpointing"]:
        model.gradient_checkpointing_enable()
    trained = [p for p in model.parameters() if p.requires_grad]
    fused = world.device == "cuda"
    own = {} if "optimizer" in config else {"optimizer": torch.optim.AdamW(trained, lr=1e-4, fused=fused)}
    engine, *_ = deepspeed.initialize(
        model=model, config=config, **own, **({} if own else {"model_parameters": trained})
    )
    for _ in range(STEPS):
        step(engine, case, world)


def step(engine: Any, case: dict[str, Any], world: DistributedWorld) -> None:
    """One optimizer step with the loss dsrun computes; one sample is padded, as in most batches."""
    seq2seq = case["config"]["model_type"] == "t5"
    device = torch.device(world.device, world.local_rank if world.device == "cuda" else 0)
    ids = torch.randint(3, 20000, (case["micro_batch"], case["length"]), device=device)
    mask = torch.ones_like(ids)
    mask[0, -3:] = 0
    inputs = {"input_ids": ids, "attention_mask": mask} | ({"decoder_input_ids": ids} if seq2seq else {})
    loss = summed_cross_entropy(engine(**inputs).logits, ids, shifted=not seq2seq, overwrite=True) / ids.numel()
    engine.backward(loss)
    engine.step()


if __name__ == "__main__":
    main(*sys.argv[1:])
    # As a rank of dsrun ends: gloo's threads may still hold a tensor, and Python would abort when they let go of it.
    end(0)
