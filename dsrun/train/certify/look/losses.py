"""Runs of one experiment that only cut it up otherwise: ranks, micro batches and ZeRO stages change nothing in it. And
what is saved: checkpoints from which training goes on, the final model, adapters, and what they generate."""

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch.nn import Linear

from dsrun.findings.finding import Finding, finding_of, has_errors
from dsrun.models.headers import read_header, stored_weights
from dsrun.runs.folder import RunFolder
from dsrun.runs.records import read_records
from dsrun.train.certify.look.forward import LENGTH, logits_of, small_model
from dsrun.train.certify.subject import EXPERT_MATRICES, CertifySubject, SmallRun
from dsrun.train.loss.probe import tokens


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


_SAVED = 2
"""The step after which runs go on."""
_OF_EXPERT = re.compile(r"(.*experts)\.(?:(?:expert_)?(\d+)\.|.*\[(\d+)\]$)")
_LITTLE = 1e-5
"""Of the size of a weight."""
_RESUMED = {"resumed": ("reference", True), "readapted": ("lora", True), "resharded": ("zero3", False)}
"""Runs that go on with one, and whether on as many ranks."""


def resumed(subject: CertifySubject) -> Iterator[Finding]:
    """On as many ranks a resumed run is the uninterrupted one to the bit, elsewhere to rounding."""
    bounds = bounds_of(subject)
    for name, (source, exact) in _RESUMED.items():
        if name not in subject.runs:
            continue
        found, expected = curve_of(subject.runs[name]), curve_of(subject.runs[source], after=_SAVED)
        losses, norms = difference(found.losses, expected.losses), difference(found.norms, expected.norms)
        one, other = (RunFolder(subject.runs[each].folder).model for each in (name, source))
        apart = moved_apart(one, other, subject.small)
        limits = (0.0, 0.0, 0.0) if exact and not subject.request.gpus else bounds
        if losses > limits[0] or norms > limits[1] or apart > limits[2]:
            key = "resumed.exact_differs" if exact else "resumed.elsewhere_differs"
            yield finding_of(key, where=name, loss=losses, apart=100 * apart)
        elif exact:
            yield finding_of("resumed.exact", run=subject.runs[name].says)
        else:
            yield finding_of("resumed.elsewhere", loss=losses)


def final(subject: CertifySubject) -> Iterator[Finding]:
    """The final model has the tensors that it began with, and computes on its own what the engine computed with it."""
    problems = [*_tensors(subject, "zero3"), *_tensors(subject, "reference")] or [*_untrained(subject)]
    yield from problems
    if "reloaded" in subject.runs and not problems:
        yield from _same_evaluation(subject, "zero3", "reloaded", same="final.same_loss", other="final.other_loss")
    elif not problems:
        yield finding_of("final.tensors", tensors=len(_shapes(subject.small)))


def _tensors(subject: CertifySubject, name: str) -> Iterator[Finding]:
    if name not in subject.runs:
        return
    before, after = _shapes(subject.small), _shapes(RunFolder(subject.runs[name].folder).model)
    missing, extra = sorted(before.keys() - after.keys()), sorted(after.keys() - before.keys())
    if not (RunFolder(subject.runs[name].folder).model / "generation_config.json").is_file():
        missing.append("generation_config.json")
    changed = sorted(key for key in before.keys() & after.keys() if before[key] != after[key])
    for variant, keys in (("missing", missing), ("extra", extra), ("changed", changed)):
        if keys:
            yield finding_of(f"final.{variant}", where=name, number=len(keys), first=keys[0])


def _untrained(subject: CertifySubject) -> Iterator[Finding]:
    """Weights that are as before, though logits depend on them: what only chooses, as an index of tokens, has no
    gradient, and to change it by so little chooses nothing else."""
    model, still, found = small_model(subject), _still(subject, "reference"), []
    experts = {name: each.groups() for name in _trained(model) if (each := _OF_EXPERT.match(name))}
    moved = {expert for name, expert in experts.items() if name not in still}
    idle = [name for name, expert in experts.items() if expert not in moved]  # no token of the few rows reached them
    if len(idle) > len(experts) / 2:
        yield finding_of("final.idle", number=len(idle), total=len(experts), first=idle[0])
    ids = tokens(model, model.device, LENGTH)
    before = logits_of(model, ids)
    for name, each in ((name, each) for name, each in _trained(model).items() if name in still.difference(idle)):
        was = each.clone()
        each.add_(torch.randn_like(each), alpha=_LITTLE * float(each.norm()) / math.sqrt(each.numel()))
        found += [] if torch.equal(logits_of(model, ids), before) else [name]
        each.copy_(was)
    if found:
        yield finding_of("final.untrained", number=len(found), first=found[0])


def _without_adapter(subject: CertifySubject) -> Iterator[Finding]:
    """Linear layers that training moves, but LoRA does not, or whose adapter is not saved."""
    model, whole, adapted = small_model(subject), _still(subject, "reference"), _still(subject, "lora")
    header = read_header(RunFolder(subject.runs["lora"].folder).adapter / "adapter_model.safetensors")
    saved = {name.removeprefix("base_model.model.").replace("lora_B.", "") for name in header}
    layers = [name for name, each in model.named_modules() if isinstance(each, Linear)]
    weights = {f"{name}.weight" for name in layers if model.get_submodule(name) is not model.get_output_embeddings()}
    if left := sorted((weights & _trained(model).keys()) - whole - (saved - adapted)):
        yield finding_of("adapter.left_out", number=len(left), first=left[0])


def _still(subject: CertifySubject, run: str) -> set[str]:
    """What that run has left as it was."""
    before, after = (_trained(small_model(subject, at)) for at in (None, RunFolder(subject.runs[run].folder).model))
    return {name for name, each in before.items() if torch.equal(each, after[name])}


def _trained(model: Any) -> dict[str, torch.Tensor]:
    """What is to be trained: parameters, and each expert's part of one that holds those of all."""
    own = {name: each.data for name, each in model.named_parameters() if each.requires_grad}
    fused = [name for name, each in own.items() if each.ndim == EXPERT_MATRICES and "experts" in name]
    experts = {f"{name}[{number}]": part for name in fused for number, part in enumerate(own[name])}
    return {name: each for name, each in own.items() if name not in fused} | experts


def _shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    found = stored_weights(folder)
    return found.shapes if found else {}


def _same_evaluation(
    subject: CertifySubject, trained: str, reloaded: str, *, same: str, other: str
) -> Iterator[Finding]:
    # Of the last evaluation.
    tables = (read_records(RunFolder(subject.runs[name].folder).metrics) for name in (trained, reloaded))
    live, again = (float([row["eval_loss"] for row in rows if "eval_loss" in row][-1]) for rows in tables)
    apart = difference([again], [live])
    if apart <= bounds_of(subject).loss:
        yield finding_of(same, apart=apart)
    else:
        yield finding_of(other, where=reloaded, found=again, live=live)


def generated(subject: CertifySubject) -> Iterator[Finding]:
    if "reloaded" not in subject.runs or subject.task == "dpo":
        return
    sharded, plain = (
        [row["prediction"] for row in read_records(subject.runs[name].folder / "predictions-test.jsonl")]
        for name in ("generating", "reloaded")
    )
    same = sum(one == other for one, other in zip(sharded, plain, strict=False))
    ok = same == len(sharded) == len(plain) > 0
    key, where = ("generated.same", "") if ok else ("generated.other", "generating")
    yield finding_of(key, where=where, same=same, texts=len(plain))


def adapter(subject: CertifySubject) -> Iterator[Finding]:
    if "lora" not in subject.runs:
        return
    problems = list(_tensors(subject, "lora"))
    left_out = [] if problems else list(_without_adapter(subject))
    yield from problems + left_out
    if "merged" in subject.runs and not problems:
        yield from _same_evaluation(subject, "lora", "merged", same="adapter.same_loss", other="adapter.other_loss")
    elif not problems + left_out:
        yield finding_of("adapter.trained")
