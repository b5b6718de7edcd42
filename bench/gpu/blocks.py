"""The blocks of `make bench-gpu` in order of value; each is a process of its own with a time limit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.memory_cases import LLAMA_1B, LLAMA_8B, T5_LARGE

LIMIT_S = 470
"""Below eight minutes: no block outlives the shortest limit of an interactive job."""

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
    """A row of the table. `argv` runs under this environment's Python and is ended after `limit_s`; with less than
    `least_s` left of all the time it is not begun. `result` is where it writes its figures. `full`: only when asked."""

    name: str
    argv: tuple[str, ...]
    limit_s: int = LIMIT_S
    least_s: int = 0
    result: Path | None = None
    full: bool = False


def blocks(work: Path) -> list[Block]:
    """All, in order of value; `work` keeps what one leaves to another."""
    few = ("-m", "bench.gpu.few")
    wheel = ("-m", "bench.gpu.wheel")
    pytest = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "200", "-rfEs", "--tb=short")
    # Five workers on one GPU, as the models are tiny; what fills it or compiles comes in blocks of its own.
    alone = "not halves and not within_the_plan and not offload and not flex"
    tests = (*pytest, "tests/gpu", "-n", "5", "--ignore", "tests/gpu/test_gpu_ops.py", "-k", alone)
    found = [
        Block(name="facts", argv=(*few, "facts"), limit_s=60, least_s=20),
        Block(name="t5", argv=(*few, "demo", "t5"), limit_s=150, least_s=25),
        Block(name="llama", argv=(*few, "demo", "llama"), limit_s=100, least_s=25),
        Block(name="tests", argv=tests, limit_s=190, least_s=60),
        Block(name="wheel", argv=(*wheel, "wait"), limit_s=330, least_s=20),
        Block(name="verify", argv=(*wheel, "verify"), limit_s=110, least_s=30),
        Block(name="offload", argv=(*few, "offload"), limit_s=130, least_s=40),
        _timing("Llama 1B", work, limit_s=150, least_s=60),
        Block(name="Trainer, Llama 1B", argv=("-m", "bench.gpu.peer", "Llama 1B", "ddp", "zero2"),
              limit_s=130, least_s=50),
        Block(name="memory", argv=(*few, "memory"), limit_s=130, least_s=45),
        Block(name="kill", argv=(*few, "kill"), limit_s=90, least_s=45),
        Block(name="packing", argv=(*few, "packing", "causal"), limit_s=170, least_s=90),
        Block(name="packed rows", argv=("-m", "bench.packed_rows"), limit_s=100, least_s=40),
        Block(name="doctor", argv=(*few, "doctor"), limit_s=60, least_s=20),
        _timing("T5-large", work, limit_s=120, least_s=80),
        Block(name="Trainer, T5-large", argv=("-m", "bench.gpu.peer", "T5-large", "ddp"), limit_s=70, least_s=40),
        Block(name="oom", argv=(*pytest, "tests/gpu/test_gpu_memory.py", "-k", "halves"), limit_s=200, least_s=120),
        _timing("Llama 3B", work, limit_s=170, least_s=110),
        *(Block(name=name, argv=(*few, "demo", name), limit_s=90, least_s=25)
          for name in ("zero3", "qlora", "fp8", "liger", "compile")),
        Block(name="flex", argv=(*pytest, "tests/gpu/test_gpu_packing.py", "-k", "flex"), limit_s=160, least_s=60),
    ]  # fmt: skip
    return [
        *found,
        _timing("Llama 8B", work, full=True),
        _timing("T5-3B", work, full=True),
        Block(name="packing, T5", argv=(*few, "packing", "T5"), full=True),
        *(Block(name=f"memory, {name}", argv=("-m", "bench.memory", name), full=True)
          for name in ("T5-large", "Llama 1B", "Llama 8B")),
    ]  # fmt: skip


def _timing(name: str, work: Path, **limits: Any) -> Block:
    result = work / f"{name.replace(' ', '-')}.json"
    return Block(name=name, argv=("-m", "bench.gpu.timing", name, str(result)), result=result, **limits)
