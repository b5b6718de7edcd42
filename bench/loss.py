"""Memory and CPU time of the loss, forward and backward, against `F.cross_entropy(logits.float())`, which is what
transformers computes. The vocabularies are those of mT5 and mBART-50.

Each run is a process of its own, forked from this one, which has imported torch and computed nothing. Its peak is what
it holds more than before there were logits: these and their gradient count, too.
"""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.processes import forked

GIB = 2**30
TOKENS = 512
ROUNDS = 3
RUN_S = 600.0
"""Of one run, which takes seconds."""
GOAL_MEMORY = 0.6
"""Of the plain way's peak."""
GOAL_TIME = 1.1
"""Of the plain way's CPU time, as single runs of the same differ by as much."""
LINE = "{:32} {:>7} {:>7} {:>6} {:>8} {:>8} {:>6}"


@dataclass(frozen=True)
class Case:
    name: str
    vocabulary: int
    dtype: str
    smoothing: float = 0.0


CASES = (
    Case("mT5, fp32", 250112, "float32"),
    Case("mT5, bf16", 250112, "bfloat16"),
    Case("mBART, fp32, smoothing 0.1", 250054, "float32", 0.1),
    Case("mBART, bf16, smoothing 0.1", 250054, "bfloat16", 0.1),
)


def main() -> bool:
    """Print the table; whether both goals are met."""
    # Before the first fork.
    import dsrun.train.loss.cross_entropy  # noqa: F401

    print(f"{TOKENS} tokens; GiB at the peak, CPU seconds, medians of {ROUNDS} runs in turn")
    print(LINE.format("case", "plain", "dsrun", "ratio", "plain", "dsrun", "ratio"))
    held = True
    for case in CASES:
        runs: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        for _ in range(ROUNDS):
            for chunked, found in runs.items():
                found.append(measured(case, chunked))
        # Peaks and times, plain and then dsrun's.
        gib, seconds = zip(*(map(median, zip(*each, strict=True)) for each in runs.values()), strict=True)
        ratios = gib[1] / gib[0], seconds[1] / seconds[0]
        figures = (*(f"{each:.2f}" for each in (*gib, ratios[0])), *(f"{each:.2f}" for each in (*seconds, ratios[1])))
        print(LINE.format(case.name, *figures), flush=True)
        held &= ratios[0] <= GOAL_MEMORY and ratios[1] <= GOAL_TIME
    print(f"peak below {GOAL_MEMORY:g} × plain, CPU time below {GOAL_TIME:g} ×: {'yes' if held else 'NO'}")
    return held


def measured(case: Case, chunked: bool) -> tuple[float, float]:
    """The peak in GiB and the CPU seconds of one run."""
    gib, seconds = forked(_run, case, chunked, what=case.name, limit_s=RUN_S, size=2)
    return gib, seconds


def _run(case: Case, chunked: bool, found: Any) -> None:
    import torch
    from torch.nn import functional as F

    from dsrun.train.loss.cross_entropy import token_cross_entropy

    class Head(torch.autograd.Function):
        """Makes logits that nobody but the loss needs, as the last layer of a model does."""

        @staticmethod
        def forward(ctx: Any, row: torch.Tensor) -> torch.Tensor:
            return torch.linspace(-1, 1, TOKENS, dtype=row.dtype).outer(row)

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            return gradients[0][0]

    torch.manual_seed(0)
    row = torch.randn(case.vocabulary, dtype=getattr(torch, case.dtype), requires_grad=True)
    targets = torch.randint(0, case.vocabulary, (TOKENS,))
    before = _resident()
    logits = Head.apply(row)
    began = time.process_time()
    if chunked:
        loss = token_cross_entropy(logits, targets, case.smoothing, overwrite=True).sum()
    else:
        loss = F.cross_entropy(logits.float(), targets, reduction="sum", label_smoothing=case.smoothing)
    # As where the outputs of a model are gone by then.
    del logits
    loss.backward()
    seconds = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found[:] = (peak - before) / GIB, seconds


def _resident() -> int:
    """Bytes of this process that are in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
