"""How far the logits of packed documents are from what they have to be.

Two things are measured. What a document's logits owe to its neighbours: the same row with other neighbours of the same
lengths goes through the same kernels in the same shapes, so that without a leak the difference is zero, whatever the
precision. And how far they are from those of the document alone, which shows positions that do not begin again; other
shapes are rounded otherwise, so there the precision sets the bound."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dsrun.train.model.load import evaluating

ModelInputs = Mapping[str, Any]

# Of the largest logit. In fp32 what rounding changes is below 1e-5; a token of another document changes far more.
TOLERANCE = 1e-4
# bf16 keeps 8 bits: an operation is off by up to 2^-8, and a model adds up many. fp16 keeps 11, and so does TF32.
TOLERANCE_ROUNDED = 2e-2
# What neighbours may change: nothing, but for a library whose fp32 products depend on where in memory a tensor lies.
LEAK = 1e-5
# Where expert kernels gather tokens of all rows, rounding depends on neighbours; so much more than that is a leak.
TIMES_NOISE = 4


@dataclass(frozen=True)
class PackingTrial:
    """The calls of a model that show whether it keeps documents apart.

    `alone` are the documents one by one. `packed` and `changed` have one layout; `spans` are the documents of `packed`:
    the number in `alone`, and where its logits are in those of all rows one after another. Those in `kept`, indices of
    spans, are in `changed`, too, beside other neighbours. `unpacked` are two batches whose first rows are one document.
    """

    alone: Sequence[ModelInputs]
    packed: ModelInputs
    changed: ModelInputs
    spans: Sequence[tuple[int, int, int]]
    kept: Sequence[int]
    unpacked: tuple[ModelInputs, ModelInputs]


PackingMeasure = tuple[float, str | None]
"""The largest difference of a packed logit from that of the document alone, as a share of the largest logit; and why
that, or what neighbours change, is too much."""


@torch.no_grad()
def measure(model: Any, trial: PackingTrial, autocast: torch.dtype | None = None) -> PackingMeasure:
    """Call the model, under autocast to a dtype of 16 bits where one is given; whatever it raises is raised."""
    device = next(model.parameters()).device
    with evaluating(model), torch.autocast(device.type, autocast, enabled=autocast is not None):
        alone = [_logits(model, inputs)[0] for inputs in trial.alone]
        packed, changed = (_logits(model, inputs).flatten(0, 1) for inputs in (trial.packed, trial.changed))
        unit = max(_largest(alone), 1e-30)
        difference = _largest([packed[start:stop] - alone[n] for n, start, stop in trial.spans]) / unit
        spans = [trial.spans[i] for i in trial.kept]
        leak = _largest([packed[start:stop] - changed[start:stop] for _, start, stop in spans]) / unit
        bound = TOLERANCE_ROUNDED if autocast else tolerance(model)
        if difference > bound:
            return difference, f"logits differ by {100 * difference:.2g}%"
        if leak > LEAK:
            one, other = (_logits(model, inputs)[0] for inputs in trial.unpacked)
            again = _logits(model, trial.packed).flatten(0, 1)
            noise = _largest([one - other, packed - again]) / unit
            if leak > min(TIMES_NOISE * noise, bound):
                return difference, f"neighbours change logits by {100 * leak:.2g}%"
    return difference, None


def _logits(model: Any, inputs: ModelInputs) -> torch.Tensor:
    device = next(model.parameters()).device
    on_device = {name: each.to(device) if torch.is_tensor(each) else each for name, each in inputs.items()}
    logits: torch.Tensor = model(**on_device, use_cache=False)["logits"].float()
    return logits


def _largest(parts: Sequence[torch.Tensor]) -> float:
    """Raises ValueError where one is infinite or no number, which compares with nothing."""
    largest = float(torch.stack([part.abs().max() for part in parts]).max())
    if not math.isfinite(largest):
        raise ValueError("the logits are not finite")
    return largest


def tolerance(model: Any) -> float:
    """For logits that other shapes have rounded otherwise, by the precision in which the model multiplies."""
    if min(widths(model), default=4) < 4:
        return TOLERANCE_ROUNDED
    # Whether products of fp32 keep its bits is measured, as several switches of torch allow TF32, or bf16 on CPUs.
    one = torch.linspace(1, 2, 256 * 256, device=next(model.parameters()).device).view(256, 256)
    exact = one.double() @ one.double()
    is_exact = bool(((one @ one).double() - exact).abs().max() <= 1e-5 * exact.abs().max())
    return TOLERANCE if is_exact else TOLERANCE_ROUNDED


def widths(model: Any) -> set[int]:
    """Bytes of a weight; packed ones, which are no floating-point numbers, left out."""
    return {each.dtype.itemsize for each in model.parameters() if each.is_floating_point()}
