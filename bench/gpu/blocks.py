"""The blocks of `make bench-gpu`: checks first, then timings; each is a process of its own with a time limit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.memory_cases import LLAMA_1B, LLAMA_8B, T5_LARGE

LIMIT_S = 470
"""Below eight minutes: no block outlives the shortest limit of an interactive job."""
CHECKS = "test_gpu_*.py"

LLAMA_3B: dict[str, Any] = LLAMA_1B | {
    "hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 24, "num_key_value_heads": 8,
}  # fmt: skip
T5_3B: dict[str, Any] = T5_LARGE | {"d_kv": 128, "d_ff": 16384, "num_heads": 32}


@dataclass(frozen=True, kw_only=True)
class Timing:
    """A training to be timed: samples of `length` tokens (of a T5: as many in the source as in the target),
    `micro_batch` of them a pass, which the run halves where memory runs out. `goal` is the least MFU. `bf16_states`:
    master weights and optimizer states in bf16, as those of 8B in fp32 are larger than a GPU; on GPUs of less than
    `roomy` GiB SGD takes AdamW's place there, whose states even in bf16 are too large for 80."""

    name: str
    config: dict[str, Any]
    goal: float
    micro_batch: int
    length: int = 4096
    recompute: bool = False
    bf16_states: bool = False
    roomy: int = 100

    def optimizer(self, gpu_gib: float) -> str:
        """transformers' name of it. AdamW would move 20 bytes a parameter: below 2% of the time of 65,536 tokens."""
        return "sgd" if self.bf16_states and gpu_gib < self.roomy else "adamw_torch_fused"


TIMINGS = (
    Timing(name="Llama 1B", config=LLAMA_1B, goal=0.5, micro_batch=4),
    Timing(name="Llama 3B", config=LLAMA_3B, goal=0.5, micro_batch=2, recompute=True),
    Timing(name="Llama 8B", config=LLAMA_8B, goal=0.5, micro_batch=2, recompute=True, bf16_states=True),
    Timing(name="T5-large", config=T5_LARGE, goal=0.4, micro_batch=16, length=512),
    Timing(name="T5-3B", config=T5_3B, goal=0.4, micro_batch=8, length=512, recompute=True),
)


@dataclass(frozen=True, kw_only=True)
class Block:
    """A row of the table. `argv` runs under this environment's Python; `result` is where it writes its figures."""

    name: str
    argv: tuple[str, ...]
    part: str
    limit_s: int = LIMIT_S
    result: Path | None = None


def check_blocks(root: Path) -> list[Block]:
    """The wheel, then each file of tests/gpu."""
    files = sorted((root / "tests" / "gpu").glob(CHECKS))
    pytest = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
    checks = [Block(name=_name(file), argv=(*pytest, str(file)), part="check") for file in files]
    return [Block(name="wheel", argv=("-m", "bench.gpu.wheel"), part="check"), *checks]


def timing_blocks(scratch: Path) -> list[Block]:
    """The plan's memory against what is allocated, MFU by model, and packing beside its peers."""
    plans = ("T5-large", "Llama 1B", "Llama 8B")
    blocks = [Block(name=f"memory plan {name}", argv=("-m", "bench.memory", name), part="check") for name in plans]
    for timing in TIMINGS:
        result = scratch / f"{timing.name.replace(' ', '-')}.json"
        argv = ("-m", "bench.gpu.timing", timing.name, str(result))
        blocks.append(Block(name=timing.name, argv=argv, part="timing", result=result))
    for kind in ("causal", "T5"):
        folder = scratch / "ladder"
        ladder = ("-m", "bench.ladder", "--gpu", "--rounds", "1", "--kinds", kind, "--output", str(folder))
        blocks.append(Block(name=f"ladder {kind}", argv=ladder, part="timing", result=folder / kind / "costs.json"))
    return blocks


def _name(file: Path) -> str:
    return file.stem.removeprefix("test_gpu_").replace("_", " ")
