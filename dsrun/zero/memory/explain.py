"""How each part of a GPU's memory comes about: its bytes, formula and source (`dsrun plan --explain`)."""

from dataclasses import replace
from typing import NamedTuple

from dsrun.datafiles import SubjectNames, evaluate, toml_beside
from dsrun.zero.generate.presets import GIB
from dsrun.zero.memory.model.architecture import training
from dsrun.zero.memory.peak import gpu, sharding_of, sums_in_fp32
from dsrun.zero.memory.plan_request import PlanRequest
from dsrun.zero.memory.rank.activations import LIGER
from dsrun.zero.memory.rank.states import FP32
from dsrun.zero.memory.strategy import PlanCandidate

_TABLE = toml_beside(__file__)
SHOWN = GIB // 200
"""Bytes below which a part is left out."""


class ExplainedPart(NamedTuple):
    """Bytes of a part of the peak; of a saving, that much less."""

    name: str
    size: int
    formula: str
    source: str


def explain(request: PlanRequest, row: PlanCandidate) -> list[ExplainedPart]:
    """The parts of the row's peak, in the order in which they come to be, and what each part of Liger saves."""
    names = _names(request, row)
    parts: dict[str, ExplainedPart] = {}
    for each in _TABLE["part"]:
        size = int(evaluate(each["bytes"], names))
        if each["name"] not in parts and size >= SHOWN and evaluate(each.get("when", "True"), names):
            formula = each["formula"].format_map(names)
            parts[each["name"]] = ExplainedPart(each["name"], size, formula, each["source"])
    return [*parts.values(), *_savings(request, row)]


def _names(request: PlanRequest, row: PlanCandidate) -> SubjectNames:
    strategy, micro = row.strategy, row.micro_batch or request.micro_batch or 1
    sharding, model = sharding_of(request, strategy), request.model
    work = request.work(micro, stage=strategy.stage, checkpointing=strategy.checkpointing)
    is_trl = request.trainer == "trl" and not model.seq2seq
    loss = "trl" if is_trl else "liger" if "loss" in request.liger else "stock"
    layers = sum(stack.layers for stack in model.stacks)
    tokens = work.micro_batch * (work.length + work.source_length)
    return SubjectNames(
        row.gpu, _TABLE["terms"],
        stage=strategy.stage, checkpointing=strategy.checkpointing, world=sharding.world, bits=request.bits,
        parameters=model.parameters, trainable=training(model, request.lora).trainable, layers=layers,
        weight=sharding.weights if strategy.stage == 0 else sharding.width, master=sharding.master,
        moments=sharding.moments, optimizer=request.optimizer, persistence=sharding.persistence,
        summed=sums_in_fp32(request, strategy, micro), bucket=request.sizes.reduce_bucket,
        samples=work.micro_batch, length=work.length, hidden=model.hidden, vocabulary=model.vocabulary,
        copied="fp32" if work.autocast or not model.seq2seq else request.precision,
        residual=FP32 if work.residual else work.width, per_token=row.gpu.activations.kept / (tokens * layers),
        loss="dsrun" if loss == "stock" and request.trainer == "dsrun" else loss,
    )  # fmt: skip


def _savings(request: PlanRequest, row: PlanCandidate) -> list[ExplainedPart]:
    """What the peak would take more without each part of Liger."""
    micro = row.micro_batch or request.micro_batch or 1
    found = []
    for part in sorted(LIGER & request.liger):
        without = gpu(replace(request, liger=request.liger - {part}), row.strategy, micro)
        if (size := without.total - row.gpu.total) >= SHOWN:
            found.append(
                ExplainedPart(f"saved by Liger's {part}", size, "the same peak without it", "liger-kernel 0.8.5")
            )
    return found
