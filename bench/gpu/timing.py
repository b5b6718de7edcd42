"""One timed training: `python -m bench.gpu.timing NAME RESULT.json`.

`dsrun train` on all GPUs, weights initialised here, samples of random tokens that are all of one length: what is
measured is the step. The figures leave out start-up and the first steps, which compile and tune.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.gpu.blocks import TIMINGS, Timing
from bench.gpu.few import dry, tell
from bench.ladder.data import make_tokenizer
from bench.mfu import causal_flops, seq2seq_flops
from bench.processes import HOUR_S, run
from dsrun.hardware.gpu_facts import peak_bf16_tflops
from dsrun.machine.gpus import LocalGpu, visible_gpus
from dsrun.runs.records import read_records

STEPS, WARM_UP = 14, 4
PASSES = 8
"""Micro batches a step."""
SAMPLES = 256


def main(name: str, result: str) -> int:
    """Run it and write its figures; the exit code of the training. Without a GPU the command line alone."""
    timing = next(each for each in TIMINGS if each.name == name)
    gpus = [] if dry() else visible_gpus()
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "run"
        if not gpus:
            h100 = LocalGpu(index=0, name="NVIDIA H100", uuid="", memory_total=80 * 2**30, capability=(9, 0))
            tell(" ".join(command(replace(timing, length=32), Path(scratch), output, [h100])[2:]))
            return 0
        argv = command(timing, Path(scratch), output, gpus)
        done = run(argv, what=f"dsrun train, {name}", limit_s=HOUR_S, compiles=True)
        if done.returncode:
            return done.returncode
        rows = [row for row in read_records(output / "metrics.jsonl") if "loss" in row]
    found = {"note": timing.optimizer(_gib(gpus[0]))} | figures(timing, rows, peak_bf16_tflops(gpus[0].name), len(gpus))
    Path(result).write_text(json.dumps(found, indent=2), encoding="utf-8")
    print(json.dumps(found))
    return 0


def command(timing: Timing, scratch: Path, run: Path, gpus: Sequence[LocalGpu]) -> list[str]:
    """`dsrun train`, as a user would write it."""
    model, data = scratch / "model", scratch / "train.jsonl"
    make_tokenizer(model)
    (model / "config.json").write_text(json.dumps(timing.config))
    make_rows(data, timing)
    flags = {
        "model": model, "train-file": data, "output": run, "from-scratch": "true", "bf16": "true",
        "micro-batch-size": timing.micro_batch, "global-batch-size": timing.micro_batch * PASSES * len(gpus),
        "max-length": timing.length, "max-source-length": timing.length, "max-target-length": timing.length,
        "max-steps": STEPS, "logging-steps": 2, "learning-rate": 1e-5,
        "optim": timing.optimizer(_gib(gpus[0])), "save-strategy": "no", "do-train": "true",
        "validation-split-percentage": 0, "gradient-checkpointing": str(timing.recompute).lower(),
    }  # fmt: skip
    if timing.bf16_states:
        file = scratch / "ds_config.json"
        file.write_text(json.dumps(bf16_states()))
        flags["deepspeed"] = file
    else:
        flags["zero"] = 2
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    return [sys.executable, "-m", "dsrun", "train", *words]


def _gib(gpu: LocalGpu) -> float:
    return (gpu.memory_total or 0) / 2**30


def bf16_states() -> dict[str, Any]:
    """ZeRO-2 with master weights, gradients and optimizer states in bf16: 8 bytes a parameter in place of 16 or more.
    For timing only; such a training rounds small updates away."""
    states = {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    sizes = dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto")
    rest = {"gradient_clipping": "auto", "zero_allow_untested_optimizer": True}
    return {"bf16": states, "zero_optimization": {"stage": 2}, **sizes, **rest}


def make_rows(file: Path, timing: Timing) -> None:
    """Random ids, seeded; the small ones are in every vocabulary."""
    chance, pairs = random.Random(0), timing.config["model_type"] == "t5"
    with file.open("w", encoding="utf-8") as lines:
        for _ in range(SAMPLES):
            ids = [chance.randrange(3, 4096) for _ in range(timing.length)]
            lines.write(json.dumps({"input_ids": ids, "labels": ids[::-1] if pairs else ids}) + "\n")


def figures(timing: Timing, rows: Sequence[Mapping[str, Any]], tflops: float | None, world: int) -> dict[str, Any]:
    """Tokens a second of all GPUs, MFU by bench/mfu.py and by dsrun, and the peak that torch reserved. `rows` are those
    of metrics.jsonl that have a loss, `tflops` the dense peak of a GPU in bf16, None where it is not known."""
    first = next(row for row in rows if row["step"] >= WARM_UP)
    last = rows[-1]
    moments = [datetime.fromisoformat(row["time"]).timestamp() for row in (first, last)]
    tokens = last["tokens"] - first["tokens"]
    speed = tokens / (moments[1] - moments[0])
    config, length = timing.config, timing.length
    if config["model_type"] == "t5":
        per_token = seq2seq_flops(config, [(length, length)]) / (2 * length)
    else:
        per_token = causal_flops(config, [length]) / length
    mfu = speed * per_token / (tflops * 1e12 * world) if tflops else None
    return {
        "tokens_per_s": speed, "mfu": mfu, "goal": timing.goal, "mfu_of_dsrun": last.get("mfu"),
        "gpu_memory_peak": last.get("gpu_memory_peak"), "padding": last.get("padding"),
        "flops_per_token": per_token, "peak_tflops": tflops, "micro_batch": timing.micro_batch,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
