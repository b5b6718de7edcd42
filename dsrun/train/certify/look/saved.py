"""What is saved: checkpoints from which training goes on, the final model, adapters, and what they generate."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn import Linear

from dsrun.findings.finding import Finding
from dsrun.findings.texts import finding_of
from dsrun.models.headers import read_header, stored_weights
from dsrun.runs.folder import RunFolder
from dsrun.runs.records import read_records
from dsrun.train.certify.look.forward import LENGTH, logits_of, small_model
from dsrun.train.certify.look.losses import bounds_of, curve_of, difference, moved_apart
from dsrun.train.certify.subject import EXPERT_MATRICES, CertifySubject
from dsrun.train.loss.probe import tokens

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
    live, again = (_evaluation(subject.runs[name].folder) for name in (trained, reloaded))
    apart = difference([again], [live])
    if apart <= bounds_of(subject).loss:
        yield finding_of(same, apart=apart)
    else:
        yield finding_of(other, where=reloaded, found=again, live=live)


def _evaluation(folder: Path) -> float:
    """The loss of the run's last evaluation."""
    return float([row["eval_loss"] for row in read_records(RunFolder(folder).metrics) if "eval_loss" in row][-1])


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
