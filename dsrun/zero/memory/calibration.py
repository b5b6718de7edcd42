"""Corrections: measured over predicted memory, kept per model, GPU and precision.

On a machine without GPU, `dsrun plan --calibrate` and bench/memory.py measure the resident memory of a CPU rank. There
is no CUDA context; glibc's heap can hold a good deal more than is in use, unless MALLOC_MMAP_THRESHOLD_ is set: see
docs/benchmarks.md."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from dsrun.system.files import parse_json, replacing
from dsrun.system.variables import cache_root
from dsrun.zero.generate.presets import GIB
from dsrun.zero.memory.peak import ZeroStrategy, gpu
from dsrun.zero.memory.plan_request import PlanRequest

SANE = (0.5, 2.0)
"""A correction outside this range is refused: the plan or the measurement is wrong, and applying it would hide that."""


class MemoryComparison(NamedTuple):
    """A measurement beside its prediction, both in bytes of `what`: a GPU, or a CPU rank's resident memory."""

    what: str
    predicted: int
    measured: int
    saved: Path | None

    @property
    def factor(self) -> float:
        return self.measured / self.predicted

    @property
    def sentence(self) -> str:
        """One line for the user."""
        off = (self.predicted - self.measured) / self.measured
        kept = f"; the correction {self.factor:.3f} is kept in {self.saved}" if self.saved else ""
        return (
            f"{self.what}: predicted {self.predicted / GIB:.2f} GiB, measured {self.measured / GIB:.2f} GiB"
            f" ({off:+.1%}){kept}"
        )


def path_of(config: Mapping[str, Any], request: PlanRequest) -> Path:
    """Where a correction lies: the same model shape, GPU, precision and adapters share one."""
    facts = {
        "config": {name: value for name, value in sorted(config.items()) if not name.startswith("_")},
        "gpu": request.cluster.model.name,
        "memory": request.cluster.memory,
        "precision": request.precision,
        "lora": request.lora is not None,
    }
    import hashlib  # OpenSSL, for those who have calibrated

    key = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]
    return _folder() / f"{key}.json"


def _folder() -> Path:
    return cache_root() / "calibration"


def remembered(config: Mapping[str, Any], request: PlanRequest) -> float:
    """The correction of an earlier calibration, 1 where there is none or the file is damaged."""
    if not _folder().is_dir():
        return 1.0
    try:
        factor = parse_json(path_of(config, request).read_text())["factor"]
    except (OSError, ValueError, KeyError, TypeError):
        return 1.0
    return float(factor) if isinstance(factor, int | float) and SANE[0] <= factor <= SANE[1] else 1.0


def save(config: Mapping[str, Any], request: PlanRequest, predicted: int, measured: int) -> Path | None:
    """Keep measured over predicted bytes for later plans; None when the ratio is beyond what a correction can be."""
    factor = measured / predicted
    if not SANE[0] <= factor <= SANE[1]:
        return None
    file = path_of(config, request)
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as partial:
        partial.write_text(json.dumps({"factor": factor, "predicted": predicted, "measured": measured}) + "\n")
    return file


MIB = 2**20
BASELINE = 560 * MIB
"""Resident bytes of one `dsrun train` worker before it has a model: torch, transformers, datasets, DeepSpeed, gloo."""
HEAP = 0.02
"""Share of what is held that small blocks and their bookkeeping add."""


def resident(request: PlanRequest, strategy: ZeroStrategy, micro_batch: int, *, baseline: int = BASELINE) -> int:
    """Peak resident bytes of one CPU rank.

    Before it is sharded, a model of ZeRO-0 to 2 is whole in fp32 and then cast, which never exceeds what training
    itself takes; under ZeRO-3 it is built shard by shard."""
    peak = gpu(replace(request, factor=1.0), strategy, micro_batch)
    states = peak.states
    backward = peak.buffers.total - peak.buffers.context + peak.activations.peak
    # On the CPU torch's AdamW makes two tensors of the master's size for its denominator (optim/adam.py,
    # _single_tensor_adam); the fused kernel of a GPU makes none. Where the optimizer is offloaded it is DeepSpeed's.
    step = states.step + 2 * states.gpu.master
    held = states.gpu.total + states.host.total + max(backward, step)
    return int(baseline + held * (1 + HEAP))
