"""The runs of a ladder: their command lines, and what each cost per real token."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.cpu_clock import CpuClock
from bench.ladder.data import LONGEST
from bench.processes import LimitedProcess
from dsrun.runs.records import read_records

RANKS = 2
MICRO_BATCH, ACCUMULATION = 16, 1
GPU_MICRO_BATCH, GPU_ACCUMULATION = 64, 2
"""With 16 samples of 90 tokens a step a GPU would measure how fast kernels are launched."""
SAMPLE_S = 0.2
PATIENCE_S = 600.0
DEEPSPEED: dict[str, Any] = {
    "zero_optimization": {"stage": 2, "reduce_bucket_size": 5_000_000, "allgather_bucket_size": 5_000_000},
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
}


@dataclass(frozen=True)
class Rung:
    """`kind` is dsrun, trainer or trl; `flags` are added to the command line of dsrun."""

    name: str
    kind: str
    flags: tuple[str, ...] = ()
    deepspeed: bool = True
    causal_only: bool = False
    gpu_only: bool = False


PADDED, TRL = "Trainer, padded, ZeRO-2", "TRL, packing, ZeRO-2"
PACKED = "dsrun, packing"
RUNGS = (
    Rung("Trainer, padded, DDP", "trainer", deepspeed=False),
    Rung(PADDED, "trainer"),
    Rung("dsrun, padded", "dsrun", ("--train-sampling-strategy", "random")),
    Rung("dsrun, group_by_length", "dsrun", ("--train-sampling-strategy", "group_by_length")),
    Rung("dsrun, token budget", "dsrun", ("--packing", "off")),
    Rung(PACKED, "dsrun"),
    # On two cores inductor compiles for minutes.
    Rung("dsrun, packing, compiled", "dsrun", ("--torch_compile", "true"), gpu_only=True),
    Rung(TRL, "trl", causal_only=True),
)


@dataclass(frozen=True)
class Cost:
    """What the training of a run cost, from the end of its first steps on: `tokens` real tokens, all ranks; the
    processes' user and system seconds; the share of padding; the peak of rank 0's resident bytes. `speed` is what
    ratios are made of: tokens per second of CPU time, on GPUs of wall time."""

    tokens: int
    cpu_s: float
    wall_s: float
    padding: float
    memory: int
    gpu: bool = False

    @property
    def speed(self) -> float:
        return self.tokens / (self.wall_s if self.gpu else self.cpu_s)


@dataclass(frozen=True)
class Ladder:
    """One model and its data, for which each rung is run on `ranks` ranks; `gpu`: in bf16, one on each GPU."""

    folder: Path
    model: Path
    data: Path
    seq2seq: bool
    steps: int
    warm_up: int
    ranks: int = RANKS
    gpu: bool = False
    deepspeed: Mapping[str, Any] = field(default_factory=lambda: DEEPSPEED)

    @property
    def batch(self) -> tuple[int, int]:
        """Samples of a micro batch, and micro batches a step."""
        return (GPU_MICRO_BATCH, GPU_ACCUMULATION) if self.gpu else (MICRO_BATCH, ACCUMULATION)

    def measure(self, rung: Rung, number: int) -> Cost:
        """Run it once. RuntimeError when it fails."""
        output = self.folder / f"{rung.name.replace(', ', '-').replace(' ', '-')}-{number}"
        clock = run_sampled(self.command(rung, output), output / "bench.log", rung.name, gpu=self.gpu)
        # A model for each rung: gigabytes on GPUs.
        shutil.rmtree(output / "run" / "model", ignore_errors=True)
        return self._cost(rung, output, clock)

    def command(self, rung: Rung, output: Path) -> list[str]:
        """What runs it in the new folder `output`."""
        output.mkdir(parents=True)
        return self._dsrun(rung, output) if rung.kind == "dsrun" else self._plain(rung, output)

    def _arguments(self) -> dict[str, Any]:
        """For all, under the names of transformers."""
        return {
            "max_steps": self.steps, "learning_rate": 1e-4, "lr_scheduler_type": "constant", "optim": "adamw_torch",
            "logging_steps": 1, "save_strategy": "no", "seed": 1, "bf16": self.gpu,
        }  # fmt: skip

    def _dsrun(self, rung: Rung, output: Path) -> list[str]:
        micro_batch, passes = self.batch
        flags = {
            "model": self.model, "train-file": self.data, "output": output / "run", "nproc": self.ranks,
            "global-batch-size": micro_batch * self.ranks * passes, "micro-batch-size": micro_batch,
            "max-length": LONGEST, "validation-split-percentage": 0, "deepspeed": self._json(), "do-train": "true",
            **self._arguments(),
        }  # fmt: skip
        if attention := self._attention():
            flags["attn-implementation"] = attention
        words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
        return [sys.executable, "-m", "dsrun", "train", *words, *rung.flags]

    def _plain(self, rung: Rung, output: Path) -> list[str]:
        rows, passes = self.batch
        if rung.kind == "trl":
            # As many rows as hold the tokens that a micro batch has on average, in whole rows.
            rows = max(1, round(rows * self._mean_tokens() / LONGEST))
        arguments = {
            **self._arguments(), "per_device_train_batch_size": rows, "disable_tqdm": True, "report_to": "none",
            "gradient_accumulation_steps": passes,
        }  # fmt: skip
        if rung.deepspeed:
            arguments["deepspeed"] = str(self._json())
        places = {"model": str(self.model), "data": str(self.data), "output": str(output)}
        recipe = {**places, "kind": rung.kind, "gpu": self.gpu, "attention": self._attention()}
        file = output / "recipe.json"
        file.write_text(json.dumps({**recipe, "row_tokens": LONGEST, "arguments": arguments}, indent=2))
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.ranks}"]
        return [sys.executable, *torchrun, "--module", "--", "bench.ladder.plain", str(file)]

    def _attention(self) -> str | None:
        """Flash attention where it can run, None for the default, which is scaled_dot_product_attention."""
        return "flash_attention_2" if self.gpu and not self.seq2seq and find_spec("flash_attn") else None

    def _json(self) -> Path:
        file = self.folder / "ds_config.json"
        # Small buckets are for gloo.
        large = {"zero_optimization": {"stage": 2}} if self.gpu else {}
        file.write_text(json.dumps({**self.deepspeed, **large, "bf16": {"enabled": self.gpu}}, indent=2))
        return file

    def _mean_tokens(self) -> float:
        lengths = [len(json.loads(line)["input_ids"]) for line in self.data.open(encoding="utf-8")]
        return sum(lengths) / len(lengths)

    def _cost(self, rung: Rung, output: Path, clock: CpuClock) -> Cost:
        if rung.kind == "dsrun":
            rows = [row for row in read_records(output / "run" / "metrics.jsonl") if "loss" in row]
            tokens, padding = _of_dsrun(rows[self.warm_up - 1 :])
        else:
            ranks = [read_records(file)[self.warm_up - 1 :] for file in sorted(output.glob("metrics-*.jsonl"))]
            tokens, padding = _of_ranks(ranks)
            rows = [{}] * (self.warm_up - 1) + ranks[0]
        begin, end = (datetime.fromisoformat(rows[place]["time"]).timestamp() for place in (self.warm_up - 1, -1))
        memory = int(rows[-1]["host_memory_peak"])
        return Cost(tokens, clock.at(end) - clock.at(begin), end - begin, padding, memory, self.gpu)


def _of_dsrun(rows: list[Mapping[str, Any]]) -> tuple[int, float]:
    """Tokens of all lines but the first, and the padding of their cells: a line has its own share."""
    tokens = [row["tokens"] for row in rows]
    steps = [after - before for before, after in pairwise(tokens)]
    cells = sum(step / (1 - row["padding"]) for step, row in zip(steps, rows[1:], strict=True))
    return sum(steps), 1 - sum(steps) / cells


def _of_ranks(ranks: list[list[Mapping[str, Any]]]) -> tuple[int, float]:
    """The same of each rank's own counts."""
    tokens, cells = (sum(rank[-1][name] - rank[0][name] for rank in ranks) for name in ("tokens", "cells"))
    return tokens, 1 - tokens / cells


def environment(*, gpu: bool) -> dict[str, str]:
    """A thread a rank, and this checkout."""
    root = str(Path(__file__).parents[2])
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": root, "TOKENIZERS_PARALLELISM": "false"}
    return env if gpu else env | {"DS_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": "lo"}


def run_sampled(command: list[str], log: Path, name: str, *, gpu: bool) -> CpuClock:
    """Run it to its end with a thread a rank; its CPU time by the clock. RuntimeError when it fails."""
    with log.open("wb") as out:
        kinds = {"env": environment(gpu=gpu), "compiles": True, "stdout": out, "stderr": out}
        process = LimitedProcess(command, what=name, limit_s=PATIENCE_S, **kinds)
    clock = CpuClock(process.pid)
    with process:
        while process.poll() is None:
            clock.sample()
            process.check()
            time.sleep(SAMPLE_S)
    if process.returncode:
        raise RuntimeError(f"{name} failed; see {log}")
    return clock
