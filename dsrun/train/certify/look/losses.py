"""Runs of one experiment that only cut it up otherwise: ranks, micro batches and ZeRO stages change nothing in it."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file

from dsrun.findings.finding import Finding, has_errors
from dsrun.findings.texts import finding_of
from dsrun.runs.folder import RunFolder
from dsrun.runs.records import read_records
from dsrun.train.certify.subject import CertifySubject, SmallRun


class RunCurve(NamedTuple):
    """Of each step, in order."""

    losses: tuple[float, ...]
    norms: tuple[float, ...]


class CurveBounds(NamedTuple):
    """Relative differences that rounding explains, of losses, of gradient norms, and of weights as shares of how far
    they have moved."""

    loss: float
    norm: float
    weights: float


# Of 70 architectures the largest were 1e-6, 2e-5 and 5e-5, but for Kimi's linear attention, whose chunks depend on the
# padding: 3e-5 and 3e-4. Gradients of one small vector that are half as large again change the norm by 1e-3.
FP32 = CurveBounds(5e-5, 5e-4, 2e-2)
# Sums of another order in bf16, whose half unit is 2**-9, on top of kernels that differ by batch size.
BF16 = CurveBounds(2e-2, 1e-1, 2e-1)
GROWTH = 4.0
"""By what a step may multiply a difference: training does so by itself, with routers and tall gradients (Gemma 4)."""


def bounds_of(subject: CertifySubject) -> CurveBounds:
    """Those of the dtype that the runs compute in."""
    return BF16 if subject.request.gpus else FP32


def curve_of(run: SmallRun, *, after: int = 0) -> RunCurve:
    """Losses and gradient norms of the steps `after` that step."""
    rows = [row for row in read_records(RunFolder(run.folder).metrics) if "loss" in row and row["step"] > after]
    return RunCurve(tuple(row["loss"] for row in rows), tuple(row["grad_norm"] for row in rows))


def difference(found: Sequence[float], expected: Sequence[float]) -> float:
    """The largest relative difference, inf where a number is missing or is none."""
    if len(found) != len(expected) or not found or not all(map(math.isfinite, (*found, *expected))):
        return math.inf
    return max(abs(one - other) / max(abs(other), 1e-12) for one, other in zip(found, expected, strict=True))


def is_same(found: RunCurve, expected: RunCurve, bounds: CurveBounds) -> bool:
    """Whether two curves differ by rounding alone, which grows with each step."""
    if len(found.losses) != len(expected.losses) or not found.losses:
        return False
    pairs = zip(found, expected, bounds[:2], strict=True)
    return all(
        difference([one], [other]) <= bound * GROWTH**step
        for ours, theirs, bound in pairs
        for step, (one, other) in enumerate(zip(ours, theirs, strict=True))
    )


def moved_apart(one: Path, other: Path, start: Path) -> float:
    """How far the weights of two models in folders are apart, as a share of how far the second has moved from those of
    `start`; inf where they hold other tensors."""
    weights, others, before = (_weights(folder) for folder in (one, other, start))
    if weights.keys() != others.keys():
        return math.inf
    apart = sum(float((weights[name] - others[name]).norm() ** 2) for name in others)
    moved = sum(float((others[name] - before[name]).norm() ** 2) for name in others if name in before)
    return math.sqrt(apart / moved) if moved else math.inf


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    """All float tensors of a model's folder, in fp32."""
    found = {name: each for file in folder.glob("*.safetensors") for name, each in load_file(file).items()}
    return {name: each.float() for name, each in found.items() if each.is_floating_point()}


def compare(
    subject: CertifySubject, names: Sequence[str], reference: str, *, differs: str, equal: str
) -> Iterator[Finding]:
    """An error for each of the runs whose curve is not that of the reference, else what they all differ by at most."""
    bounds = bounds_of(subject)
    expected = curve_of(subject.runs[reference])
    worst, same = [0.0, 0.0], True
    for name in names:
        found = curve_of(subject.runs[name])
        losses, norms = difference(found.losses, expected.losses), difference(found.norms, expected.norms)
        worst = [max(pair) for pair in zip(worst, (losses, norms), strict=True)]
        if not is_same(found, expected, bounds):
            same = False
            yield finding_of(differs, where=name, loss=losses, norm=norms)
    if same:
        yield finding_of(equal, runs=len(names) + 1, loss=worst[0], norm=worst[1])


def one_loss(subject: CertifySubject) -> Iterator[Finding]:
    names = [name for name in ("accumulated", "two-ranks") if name in subject.runs]
    yield from compare(subject, names, "reference", differs="one_loss.differs", equal="one_loss.equal")


def kernels(subject: CertifySubject) -> Iterator[Finding]:
    yield from compare(subject, ["kernels"], "plain", differs="kernels.differs", equal="kernels.equal")


def stages(subject: CertifySubject) -> Iterator[Finding]:
    names = [name for name in ("zero1", "zero2", "zero3") if name in subject.runs]
    if not names or "two-ranks" not in subject.runs:
        return
    findings = list(compare(subject, names, "two-ranks", differs="stages.differs", equal="stages.equal"))
    yield from findings
    if has_errors(findings):
        return
    reference = RunFolder(subject.runs["two-ranks"].folder).model
    for name in names:
        apart = moved_apart(RunFolder(subject.runs[name].folder).model, reference, subject.small)
        if apart > bounds_of(subject).weights:
            yield finding_of("stages.weights", where=name, apart=100 * apart)
