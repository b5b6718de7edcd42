"""Predicted peak memory against what a rank really takes, beside DeepSpeed's and accelerate's own estimates.

With GPUs the peak that torch reserved on each, without them the resident memory of a CPU rank. A case passes when the
prediction is within the goal; being too low by more than TOO_LOW fails on GPUs, where it means a run that dies.

CPU ranks run with a fixed M_MMAP_THRESHOLD. Left alone, glibc raises it to 32 MiB as it goes and then keeps freed
tensors below that on its heap: the same runs took 15% to 75% more, which is no property of the training.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.memory_cases import ON_CPU, Case, on_gpu
from bench.processes import HOUR_S, run
from dsrun.launch.context import LocalWorkers
from dsrun.launch.environment import run_command, worker_environment
from dsrun.machine.gpus import visible_gpus
from dsrun.system.net import free_port
from dsrun.zero.memory.calibration import resident
from dsrun.zero.memory.model.count import describe
from dsrun.zero.memory.peak import ZeroStrategy, gpu
from dsrun.zero.memory.plan_request import PlanRequest, cluster

GIB = 2**30
CPU_RANKS = 2
BASELINE = 290 * 2**20
"""Resident bytes of a rank with torch, transformers and DeepSpeed loaded and gloo joined, before there is a model."""
FIXED_THRESHOLD = {"MALLOC_MMAP_THRESHOLD_": "65536"}
GOAL_CPU, GOAL_GPU, TOO_LOW = 0.10, 0.05, 0.03
LINE = "{:22} {:>9} {:>9} {:>7} {:>10} {:>10}"


def main(only: str = "") -> bool:
    """Print the table, or the lines of the model `only`; whether every prediction is within its goal."""
    gpus = visible_gpus()
    world = len(gpus) or CPU_RANKS
    if not gpus:
        # Or DeepSpeed, asked for its estimates, prints a warning into the table.
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    cases = on_gpu(world) if gpus else ON_CPU
    print(f"GiB per {'GPU' if gpus else 'CPU rank'}, {world} ranks, two steps")
    print(LINE.format("case", "predicted", "measured", "off", "DeepSpeed", "accelerate"))
    held = True
    for case in (case for case in cases if only in case.name):
        ranks = measure(case, world, "cuda" if gpus else "cpu")
        measured = max(rank["gpu"] + rank["context"] if gpus else rank["host"] for rank in ranks)
        predicted = predict(case, world, gpus[0].name if gpus else None)
        off = predicted / measured - 1
        rivals = estimates(case, ranks[0]["elements"], world, on_cpu=not gpus)
        sizes = [f"{each / GIB:.2f}" for each in (predicted, measured)]
        print(
            LINE.format(words(case), *sizes, f"{off:+.1%}", *(f"{each / GIB:.2f}" for each in rivals)),
            flush=True,
        )
        held &= -TOO_LOW <= off <= GOAL_GPU if gpus else abs(off) <= GOAL_CPU
    print(f"all within the goal: {'yes' if held else 'NO'}")
    return held


def words(case: Case) -> str:
    """`Llama 120M Z3+cpu bf16 c b8`."""
    place = "" if case.offload == "none" else "+cpu"
    return f"{case.name} Z{case.stage}{place} {case.precision}{' c' if case.checkpointing else ''} b{case.micro_batch}"


def measure(case: Case, world: int, device: Any) -> list[dict[str, Any]]:
    """Run the case on `world` ranks; what each found."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "case.json").write_text(json.dumps(case.as_dict()))
        args = [str(folder / "case.json"), str(folder / "out")]
        rendezvous = [f"--nproc-per-node={world}", "--master-addr=127.0.0.1", f"--master-port={free_port()}"]
        argv = run_command([*rendezvous, "--module", "bench.memory_run", *args])
        changes = worker_environment(LocalWorkers(world, device, world), os.environ, debug=False) | FIXED_THRESHOLD
        env = {name: value for name, value in {**os.environ, **changes}.items() if value is not None}
        done = run(argv, what=words(case), limit_s=HOUR_S, env=env, compiles=True, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{words(case)} failed:\n{done.stderr[-3000:]}")
        return [json.loads((folder / f"out-{rank}").read_text()) for rank in range(world)]


def predict(case: Case, world: int, gpu_name: str | None) -> int:
    """dsrun's bytes for one rank."""
    request = PlanRequest(
        model=describe(case.config, from_scratch=True),
        cluster=cluster(f"{gpu_name or 'none'}:{world}", memory=80),
        length=case.length,
        source_length=case.length,
        global_batch=case.micro_batch * world,
        precision="bf16" if case.precision == "bf16" else "fp32",
        lora=case.lora,
    )
    offload = "cpu" if case.offload == "cpu" else "none"
    strategy = ZeroStrategy(stage=case.stage, offload=offload, checkpointing=case.checkpointing)
    if gpu_name is None:
        return resident(request, strategy, case.micro_batch, baseline=BASELINE)
    return gpu(request, strategy, case.micro_batch).total


def estimates(case: Case, elements: dict[str, int], world: int, *, on_cpu: bool) -> tuple[int, int]:
    """The rivals': DeepSpeed's model states (GPU and, on a CPU rank, host added), accelerate's training total."""
    from accelerate.commands.estimate import estimate_training_usage
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs as zero3
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs as zero2

    offloaded = case.offload == "cpu"
    given = {"num_gpus_per_node": world, "cpu_offload": offloaded}
    if case.stage == 3:
        host, device, _ = zero3(
            elements["parameters"], elements["largest_layer"], cpu_offload_params=offloaded, **given
        )
    else:
        host, device = zero2(elements["parameters"], **given)
    # The host figure is for all ranks of a node; without offload it is what loading may take, not training.
    deepspeed = device + (host // world if on_cpu and offloaded else 0)
    kind = "bfloat16" if case.precision == "bf16" else "float32"
    return deepspeed, max(estimate_training_usage(elements["accelerate_bytes"], kind).values())


if __name__ == "__main__":
    sys.exit(0 if main(*sys.argv[1:]) else 1)
