"""The stock Trainer on the samples of timing.py: `python -m bench.gpu.peer NAME ddp|zero2 …`. The micro batch is halved
where memory runs out. The figures leave out the first steps, as those of dsrun do."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bench.gpu.blocks import TIMINGS, Timing
from bench.gpu.few import dry, tell, work
from bench.gpu.timing import PASSES, SAMPLES, STEPS, WARM_UP
from bench.memory_cases import LLAMA_120M, T5_120M
from bench.mfu import causal_flops, seq2seq_flops
from dsrun.hardware.gpu_facts import peak_bf16_tflops
from dsrun.system.net import free_port

SMALL = {"num_layers": 1, "num_hidden_layers": 1}
ZERO_2: Mapping[str, Any] = {
    "zero_optimization": {"stage": 2}, "gradient_clipping": "auto", "zero_allow_untested_optimizer": True,
    **dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto"),
}  # fmt: skip


def main(name: str, *ways: str) -> int:
    """Each of `ways` after the other."""
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    # With several GPUs the Trainer of one process takes DataParallel, and the speed would be of all of them.
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    timing = next(each for each in TIMINGS if each.name == name)
    if dry():
        config = T5_120M if timing.config["model_type"] == "t5" else LLAMA_120M
        timing = replace(timing, config=config | SMALL, length=32, micro_batch=2)
    for way in ways:
        micro = timing.micro_batch
        while micro and not measure(timing, way, micro):
            micro //= 2
    return 0


def measure(timing: Timing, way: str, micro: int) -> bool:
    """Train and tell; False where memory runs out."""
    import torch
    from transformers import Trainer, TrainingArguments, default_data_collator

    place = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    if way == "zero2":
        os.environ.update(place | {"MASTER_PORT": str(free_port())})
    steps, passes = (WARM_UP + 2, 1) if dry() else (STEPS, PASSES * timing.micro_batch // micro)
    arguments: dict[str, Any] = {
        "output_dir": str(work() / "peer"), "max_steps": steps, "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": passes, "bf16": not dry(), "optim": "adamw_torch_fused", "learning_rate": 1e-5,
        "logging_steps": 2, "save_strategy": "no", "report_to": "none", "disable_tqdm": True, "use_cpu": dry(),
        "gradient_checkpointing": timing.recompute, "dataloader_num_workers": 4, "dataloader_pin_memory": not dry(),
    }  # fmt: skip
    if not dry():
        arguments["tf32"] = True
    if way == "zero2":
        arguments["deepspeed"] = {**ZERO_2, "bf16": {"enabled": not dry()}}
    made = TrainingArguments(**arguments)
    pairs, times = timing.config["model_type"] == "t5", _times()
    trainer = Trainer(
        _model(timing, pairs), made, train_dataset=_samples(timing, pairs), data_collator=default_data_collator,
        callbacks=[times],
    )  # fmt: skip
    try:
        trainer.train()
    except torch.OutOfMemoryError as error:
        tell(f"{way}, micro batch {micro}: out of memory ({str(error)[:60]})")
        del trainer
        torch.cuda.empty_cache()
        return False
    length = timing.length
    tokens = (steps - WARM_UP) * micro * passes * length * (2 if pairs else 1)
    speed = tokens / (times.at[steps] - times.at[WARM_UP])
    tell(f"Trainer, {way}: {speed:,.0f} tokens/s, micro batch {micro}{_on_gpu(timing, pairs, speed)}")
    return True


def _on_gpu(timing: Timing, pairs: bool, speed: float) -> str:
    import torch

    if dry():
        return ""
    config, length = timing.config, timing.length
    flops = (
        seq2seq_flops(config, [(length, length)]) / (2 * length) if pairs else causal_flops(config, [length]) / length
    )
    peak = peak_bf16_tflops(torch.cuda.get_device_name())
    mfu = f", MFU {speed * flops / peak / 1e12:.1%}" if peak else ""
    return f"{mfu}, {torch.cuda.max_memory_reserved() / 2**30:.1f} GiB"


def _model(timing: Timing, pairs: bool) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    kind: Any = AutoModelForSeq2SeqLM if pairs else AutoModelForCausalLM
    torch.manual_seed(0)
    with torch.device("cpu" if dry() else "cuda"):
        return kind.from_config(AutoConfig.for_model(**timing.config), dtype=torch.float32)


def _samples(timing: Timing, pairs: bool) -> list[dict[str, list[int]]]:
    """As timing.make_rows writes them, again and again: the Trainer counts epochs."""
    chance, rows = random.Random(0), []
    for _ in range(SAMPLES):
        ids = [chance.randrange(3, 4096) for _ in range(timing.length)]
        rows.append({"input_ids": ids, "labels": ids[::-1] if pairs else ids, "attention_mask": [1] * len(ids)})
    return rows * 16


def _times() -> Any:
    import torch
    from transformers import TrainerCallback

    class Times(TrainerCallback):
        def __init__(self) -> None:
            self.at: dict[int, float] = {}

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if not dry():
                torch.cuda.synchronize()
            self.at[state.global_step] = time.monotonic()

    return Times()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
