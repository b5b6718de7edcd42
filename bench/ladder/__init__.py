"""What each step from padded batches to packing is worth: tokens per CPU second on samples as long as instructions.

Every rung trains the same model from the same weights on the same samples, on two gloo ranks with a thread each, under
the same DeepSpeed JSON (ZeRO-2) and with as many samples a step; the peers are the stock Trainer and TRL. The rungs are
run in turn (A B C … A B C …), so that a slow spell hits all of them, and the median of the rounds counts. CPU time is
user and system seconds of all processes of a run; start-up, the first steps and the export are left out.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from bench.ladder.data import LLAMA, SAMPLES, T5, make_data, make_model
from bench.ladder.rungs import GPU_ACCUMULATION, GPU_MICRO_BATCH, PACKED, PADDED, RANKS, RUNGS, TRL, Cost, Ladder
from bench.memory_cases import LLAMA_1B, T5_LARGE
from bench.mfu import causal_flops, seq2seq_flops
from dsrun.hardware.gpu_facts import peak_bf16_tflops
from dsrun.machine.gpus import visible_gpus

STEPS, WARM_UP, ROUNDS = 6, 2, 2
GPU_STEPS = 40
GPU_LLAMA = LLAMA_1B | {"num_hidden_layers": 8, "vocab_size": 32768}
GPU_T5 = T5_LARGE | {"num_layers": 8}
"""Half and a quarter of a billion parameters: the padded peers hold 64 rows of 512 tokens, with all their logits."""
GOALS = {
    "causal": ((PADDED, 2.5), (TRL, 2.0)),
    "T5": ((PADDED, 2.5),),
}
"""`dsrun, packing` has to be so many times as fast as these peers, in real tokens per CPU second."""
FLASH_GOAL = 1.1
LIBRARIES = ("torch", "transformers", "accelerate", "deepspeed", "trl")
LINE = "{:26} {:>10} {:>10} {:>8} {:>9} {:>6} {:>7}"


def main(words: Sequence[str] = ()) -> bool:
    """Print both ladders; whether all goals are met."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that a run in progress is ended, too
    options = _parser().parse_args(words)
    folder = options.output or Path(tempfile.mkdtemp(prefix="dsrun-ladder-"))
    print("libraries: " + ", ".join(f"{name} {version(name)}" for name in LIBRARIES))
    gpus = visible_gpus() if options.gpu else []
    if gpus:
        peak = (peak_bf16_tflops(gpus[0].name) or float("inf")) * 1e12 * len(gpus)
        print(f"{len(gpus)} × {gpus[0].name}; ratios of wall time")
    else:
        peak = matmul_flops()
        print(f"{RANKS} ranks, a thread each; a core multiplies matrices with {peak / 1e9:.0f} GFLOP/s (fp32)")
    held = True
    for kind in options.kinds:
        held &= _climb(kind, folder.resolve() / kind, options, peak)
    if not options.output:
        shutil.rmtree(folder)
    print(f"all goals met: {'yes' if held else 'NO'}")
    return held


def _climb(kind: str, folder: Path, options: argparse.Namespace, peak: float) -> bool:
    """All rungs of a kind in turn, and their table; whether its goals are met."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    seq2seq, world = kind == "T5", len(visible_gpus()) if options.gpu else RANKS
    config = (GPU_T5 if seq2seq else GPU_LLAMA) if options.gpu else (T5 if seq2seq else LLAMA)
    steps = options.steps or (GPU_STEPS if options.gpu else STEPS)
    # No sample twice on a GPU.
    samples = options.samples or (GPU_MICRO_BATCH * GPU_ACCUMULATION * world * steps if options.gpu else SAMPLES)
    lengths = make_data(folder / "train.jsonl", seq2seq=seq2seq, samples=samples)
    model = make_model(folder / "model", {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1, **config})
    ladder = Ladder(folder, model, folder / "train.jsonl", seq2seq, steps, WARM_UP, world, options.gpu)
    fitting = [rung for rung in RUNGS if not (seq2seq and rung.causal_only) and (options.gpu or not rung.gpu_only)]
    rungs = [rung for rung in fitting if rung.name in options.rungs]
    costs: dict[str, list[Cost]] = {rung.name: [] for rung in rungs}
    for number in range(options.rounds):
        for rung in rungs:
            try:
                costs[rung.name].append(ladder.measure(rung, number))
            except RuntimeError as error:
                print(f"error: {error}", file=sys.stderr, flush=True)
    if seq2seq:
        flops = seq2seq_flops(config, lengths) / sum(map(sum, lengths))
    else:
        flops = causal_flops(config, [source for source, _ in lengths]) / sum(source for source, _ in lengths)
    (folder / "costs.json").write_text(json.dumps({name: [vars(c) for c in each] for name, each in costs.items()}))
    print_table(kind, costs, flops / peak)
    flash = options.gpu and not seq2seq and find_spec("flash_attn") is not None
    return print_goals(kind, costs, flash=flash)


def print_table(kind: str, costs: dict[str, list[Cost]], mfu_per_token: float) -> None:
    """A line for each rung: real tokens a second of CPU and wall time, against the padded Trainer, …"""
    print(LINE.format(kind, "tok/CPU s", "tok/wall s", "padding", "GiB/rank", "MFU", "ratio"))
    for name, found in costs.items():
        if not found:
            print(f"{name:26} failed")
            continue
        speed = _speed(found)
        wall = median(cost.tokens / cost.wall_s for cost in found)
        padding, memory = median(cost.padding for cost in found), max(cost.memory for cost in found) / 2**30
        ratio = speed / _speed(costs[PADDED]) if costs.get(PADDED) else float("nan")
        figures = (f"{speed:,.0f}", f"{wall:,.0f}", f"{padding:.1%}", f"{memory:.2f}")
        print(LINE.format(name, *figures, f"{speed * mfu_per_token:.0%}", f"{ratio:.2f}"), flush=True)


def print_goals(kind: str, costs: dict[str, list[Cost]], *, flash: bool) -> bool:
    """Each goal, and whether it is met; False if one is missed. With flash attention TRL wastes less."""
    met = True
    for peer, usual in GOALS[kind]:
        goal = FLASH_GOAL if flash and peer == TRL else usual
        if not costs.get(PACKED) or not costs.get(peer):
            print(f"{kind}: {PACKED} was not measured beside {peer}: MISSED")
            met = False
            continue
        ratio = _speed(costs[PACKED]) / _speed(costs[peer])
        print(f"{kind}: {PACKED} has {ratio:.2f} × the tokens per second of {peer}; goal {goal:g} ×: ", end="")
        print("met" if ratio >= goal else "MISSED", flush=True)
        met &= ratio >= goal
    return met


def _speed(found: list[Cost]) -> float:
    return median(cost.speed for cost in found)


def matmul_flops() -> float:
    """FLOP/s of large fp32 matrix products on one thread, by CPU time: what a core can do, and so the peak for MFU."""
    import time

    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    size, found = 1024, []
    one = torch.rand(size, size)
    for _ in range(6):
        begin = time.process_time()
        one @ one
        found.append(2 * size**3 / (time.process_time() - begin))
    torch.set_num_threads(threads)
    return max(found)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.ladder", description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", nargs="+", choices=list(GOALS), default=list(GOALS), help="default: both")
    parser.add_argument(
        "--steps", type=int, help=f"optimizer steps, {WARM_UP} not measured (default {STEPS}, {GPU_STEPS} on GPUs)"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"runs of every rung (default {ROUNDS})")
    parser.add_argument(
        "--samples", type=int, help=f"of the data (default {SAMPLES}; on GPUs as many as the steps take)"
    )
    names = [rung.name for rung in RUNGS]
    parser.add_argument("--rungs", nargs="+", choices=names, default=names, metavar="NAME", help="default: all")
    parser.add_argument("--gpu", action="store_true", help="larger models and batches in bf16 on all GPUs")
    parser.add_argument("--output", type=Path, help="folder to keep all runs in (default: a temporary one)")
    return parser
