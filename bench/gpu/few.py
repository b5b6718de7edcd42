"""The small blocks: `python -m bench.gpu.few NAME [ARGUMENT]`. A line that begins with `=> ` goes into the table.

With DRY set they run small models on one CPU rank, to try the blocks themselves.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.processes import COMMAND_S, HOUR_S, LimitedProcess, run
from dsrun.runs.records import read_records

WORK, DRY = "DSRUN_BENCH_WORK", "DSRUN_BENCH_DRY"
"""Environment variables: the folder that blocks share, and whether this is a dry run."""
PACKAGES = [
    "torch",
    "triton",
    "transformers",
    "tokenizers",
    "accelerate",
    "deepspeed",
    "datasets",
    "peft",
    "trl",
    "bitsandbytes",
    "torchao",
    "liger-kernel",
]
GIB = 2**30
SHORT = ("--max-steps", "60", "--save-strategy", "no")
TUNED = ("--max-steps", "40", "--save-strategy", "no")
DEMOS: Mapping[str, tuple[str, ...]] = {
    "t5": ("--zero", "2", "--model", "demo-t5"),
    "llama": ("--zero", "2", "--model", "demo-llama"),
    "offload3": ("--zero", "3", "--offload", "cpu", "--model", "demo-t5", *SHORT),
    "fused": ("--model", "demo-t5", *SHORT),
    "zero3": ("--zero", "3", "--model", "demo-llama", *SHORT),
    "qlora": ("--zero", "2", "--lora", "8", "--quantization", "4bit", *TUNED),
    "fp8": ("--zero", "2", "--fp8", "true", *TUNED),
    "liger": ("--zero", "2", "--model", "demo-llama", "--use-liger-kernel", "true", *SHORT),
    "compile": ("--zero", "2", "--model", "demo-llama", "--torch_compile", "true", *SHORT),
}
NEEDS = {"qlora": "bitsandbytes", "fp8": "torchao", "liger": "liger_kernel"}
ON_LLAMA = ("qlora", "fp8")
"""Those that go on from what the block `llama` has trained."""
FUSED_ADAM: dict[str, Any] = {
    "optimizer": {"type": "Adam", "params": {"lr": 4e-3}}, "zero_optimization": {"stage": 2}, "bf16": {"enabled": True},
    "gradient_clipping": "auto",
    **dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto"),
}  # fmt: skip


def tell(text: str) -> None:
    """Into the table."""
    print(f"=> {text}", flush=True)


def dry() -> bool:
    return bool(os.environ.get(DRY))


def work() -> Path:
    return Path(os.environ[WORK])


def facts() -> int:
    """Versions and the machine: what a row of the table is worth depends on them."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "-"
    tell(f"Python {sys.version.split()[0]}, {os.cpu_count()} cores, " + " ".join(f"{a} {b}" for a, b in found.items()))
    if dry():
        return 0
    import torch

    run(["nvidia-smi"], what="nvidia-smi", limit_s=COMMAND_S)
    free, total = torch.cuda.mem_get_info()
    tell(f"CUDA {torch.version.cuda}, NCCL {torch.cuda.nccl.version()}, {free / GIB:.1f} of {total / GIB:.1f} GiB free")
    one = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    for measured in (False, True):
        torch.cuda.synchronize()
        began = time.monotonic()
        for _ in range(10):
            one @ one
        torch.cuda.synchronize()
        if measured:
            tell(f"bf16 products of 8192³: {10 * 2 * 8192**3 / (time.monotonic() - began) / 1e12:.0f} TFLOP/s")
    return 0


def demo(name: str) -> int:
    """`dsrun train` of a built-in model, and a line from its records."""
    needed = NEEDS.get(name)
    if needed and find_spec(needed) is None:
        print(f"{needed} is not installed")
        return 4
    flags = list(DEMOS[name])
    if name in ON_LLAMA:
        model = work() / "llama" / "model"
        if not model.is_dir():
            print("needs the model of the block llama")
            return 4
        flags += ["--model", str(model)]
    if name == "fused":
        file = work() / "fused.json"
        file.write_text(json.dumps(FUSED_ADAM))
        flags += ["--deepspeed", str(file)]
    if dry():
        flags += ["--max-steps", "3"]
    folder = work() / name
    shutil.rmtree(folder, ignore_errors=True)
    code = run(training(folder, flags), what=f"dsrun train, {name}", limit_s=HOUR_S, compiles=True).returncode
    tell(f"{name}: {described(folder)}")
    return code


def training(run: Path, flags: list[str]) -> list[str]:
    """The command line of it."""
    small = ["--use-cpu", "--nproc", "1"] if dry() else []
    return [sys.executable, "-m", "dsrun", "train", "--output", str(run), *flags, *small]


def described(run: Path) -> str:
    """Steps, loss, speed and memory of a run, from its records."""
    rows = read_records(run / "metrics.jsonl") if (run / "metrics.jsonl").exists() else []
    losses = [row for row in rows if "loss" in row]
    if not losses:
        return "no step"
    last, speed = losses[-1], max(row.get("tokens_per_s") or 0 for row in losses)
    parts = ["finished" if (run / "FINISHED").exists() else "NOT FINISHED"]
    parts += [f"{last['step']} steps", f"loss {losses[0]['loss']:.3f} to {last['loss']:.3f}", f"{speed:,.0f} tokens/s"]
    if last.get("gpu_memory_peak"):
        parts.append(f"{last['gpu_memory_peak'] / GIB:.2f} GiB")
    parts += [f"exact match {row['eval_exact_match']:.1f}%" for row in rows if "eval_exact_match" in row][-1:]
    packing = json.loads((run / "run.json").read_text()).get("packing") or {}
    parts.append(f"batches {packing.get('batches')}" + (f": {packing['reason']}" if packing.get("reason") else ""))
    return ", ".join(parts)


def offload() -> int:
    """The optimizer on the CPU, with the wheel's CPU Adam; and DeepSpeed's own FusedAdam."""
    return demo("offload3") or (0 if dry() else demo("fused"))


def memory() -> int:
    """The plan against the peak, in three cases; `python -m bench memory` has all."""
    from bench.memory import GOAL_GPU, TOO_LOW, measure, predict, words
    from bench.memory_cases import LLAMA_120M, PLANNED, Case
    from dsrun.machine.gpus import visible_gpus

    if dry():
        os.environ["DS_ACCELERATOR"] = "cpu"
    cases = [Case(name="Llama", config=LLAMA_120M | {"num_hidden_layers": 2}, stage=2)] if dry() else PLANNED
    held = True
    for case in cases:
        rank = measure(case, 1, "cpu" if dry() else "cuda")[0]
        measured = rank["host"] if dry() else rank["gpu"] + rank["context"]
        planned = predict(case, 1, None if dry() else visible_gpus()[0].name)
        off = planned / measured - 1
        held &= dry() or -TOO_LOW <= off <= GOAL_GPU
        tell(f"{words(case)}: planned {planned / GIB:.2f} GiB, measured {measured / GIB:.2f}, off {off:+.1%}")
    print(f"all within the goal: {'yes' if held else 'NO'}")
    return 0 if held else 1


def packing(kind: str) -> int:
    """Real tokens a second of wall time: the Trainer with padding, dsrun packed, TRL packed."""
    from bench import ladder
    from bench.ladder.rungs import PACKED, PADDED, TRL

    size = ["--steps", "3", "--samples", "256"] if dry() else ["--gpu"]
    rungs = [PADDED, PACKED, *([TRL] if kind == "causal" else [])]
    return 0 if ladder.main(["--kinds", kind, "--rounds", "1", "--rungs", *rungs, *size]) else 1


def kill() -> int:
    """A rank is killed after a checkpoint: how long until the next step, and does the run end well."""
    folder, patience = work() / "kill", 400 if dry() else 70
    shutil.rmtree(folder, ignore_errors=True)
    flags = ["--zero", "2", "--model", "demo-llama", "--save-steps", "20", "--max-steps", "60", "--logging-steps", "1"]
    kinds = {"what": "dsrun train", "limit_s": 2 * patience, "compiles": True}
    with LimitedProcess(training(folder, flags), **kinds) as process:
        return _killed(process, folder, patience)


def _killed(process: LimitedProcess, folder: Path, patience: int) -> int:
    def steps() -> list[tuple[float, int]]:
        rows = read_records(folder / "metrics.jsonl") if (folder / "metrics.jsonl").exists() else []
        return [(datetime.fromisoformat(row["time"]).timestamp(), row["step"]) for row in rows if "loss" in row]

    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and process.poll() is None and not any(step >= 25 for _, step in steps()):
        time.sleep(0.05)
    try:
        rank = json.loads((folder / "status" / "node-0.json").read_text())["ranks"][0]["pid"]
    except (OSError, ValueError, LookupError) as error:
        tell(f"no rank was found: {error!r}")
        return 1
    moment = time.time()
    os.kill(rank, signal.SIGKILL)
    process.finish()
    before = max((step for when, step in steps() if when <= moment), default=None)
    after = [(when, step) for when, step in steps() if when > moment]
    then = f"step {after[0][1]} after {after[0][0] - moment:.1f} s, last step {after[-1][1]}" if after else "no step"
    tell(f"killed at step {before}: {then}, exit code {process.returncode}")
    return int(process.returncode or 0)


def doctor() -> int:
    """The commands that look at a machine and at a run; that of the block t5."""
    folder = str(work() / "t5")
    commands = {
        "doctor": ["doctor"],
        "monitor": ["monitor", "--once", folder],
        "plan": [
            "plan",
            "--model",
            f"{folder}/model",
            "--global-batch-size",
            "256",
            *(["--gpus", "h100"] if dry() else []),
        ],
        "diagnose": ["diagnose", folder],
        "report": ["report", folder, "-o", str(work() / "report.html")],
    }
    codes = {}
    for name, words in commands.items():
        argv = [sys.executable, "-m", "dsrun", *words]
        codes[name] = run(argv, what=f"dsrun {name}", limit_s=COMMAND_S).returncode
    tell("exit codes: " + ", ".join(f"{name} {code}" for name, code in codes.items()))
    return 0 if dry() else max(codes.values())


COMMANDS: Mapping[str, Callable[..., int]] = {
    "facts": facts, "demo": demo, "offload": offload, "memory": memory, "packing": packing, "kill": kill,
    "doctor": doctor,
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(COMMANDS[sys.argv[1]](*sys.argv[2:]))
