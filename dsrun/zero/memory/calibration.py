"""Corrections: what a run really took over what the plan had said, kept per model, GPU and precision."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsrun.system.files import replacing
from dsrun.system.variables import cache_root
from dsrun.zero.memory.request import PlanRequest

SANE = (0.5, 2.0)
"""A correction outside is no correction: the plan or the measurement is wrong, and applying it would hide that."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
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
        gib = 2**30
        off = (self.predicted - self.measured) / self.measured
        kept = f"; the correction {self.factor:.3f} is kept in {self.saved}" if self.saved else ""
        return (
            f"{self.what}: predicted {self.predicted / gib:.2f} GiB, measured {self.measured / gib:.2f} GiB"
            f" ({off:+.1%}){kept}"
        )


def key(config: Mapping[str, Any], question: PlanRequest) -> str:
    """The file name of a correction: the same model shape, GPU, precision and adapters share one."""
    facts = {
        "config": {name: value for name, value in sorted(config.items()) if not name.startswith("_")},
        "gpu": question.cluster.model.name,
        "memory": question.cluster.memory,
        "precision": question.precision,
        "lora": question.lora is not None,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def path_of(config: Mapping[str, Any], question: PlanRequest) -> Path:
    """Where the correction of this model on this GPU lies."""
    return cache_root() / "calibration" / f"{key(config, question)}.json"


def remembered(config: Mapping[str, Any], question: PlanRequest) -> float:
    """The correction of an earlier calibration, 1 where there is none or the file is damaged."""
    try:
        factor = json.loads(path_of(config, question).read_text())["factor"]
    except (OSError, ValueError, KeyError, TypeError):
        return 1.0
    return float(factor) if isinstance(factor, int | float) and SANE[0] <= factor <= SANE[1] else 1.0


def save(config: Mapping[str, Any], question: PlanRequest, predicted: int, measured: int) -> Path | None:
    """Keep measured over predicted bytes for later plans; None when the ratio is beyond what a correction can be."""
    factor = measured / predicted
    if not SANE[0] <= factor <= SANE[1]:
        return None
    file = path_of(config, question)
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as partial:
        partial.write_text(
            json.dumps({"factor": factor, "predicted": predicted, "measured": measured}) + "\n"
        )
    return file
