"""How the samples of a run become batches: packed, of like lengths, or one global batch after another."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from dsrun.recipe.batch import BatchPlan
from dsrun.train.base.console import Internal
from dsrun.train.base.distributed import all_ready
from dsrun.train.base.plan import TrainingPlan
from dsrun.train.base.refusals import reason_of, refusal
from dsrun.train.data.batches import BatchSplit
from dsrun.train.data.mixture import side_lengths
from dsrun.train.model.quantization import DTYPES
from dsrun.train.packing.probe import ONE_ROW, PackingMethod, ProbeVerdict, probe
from dsrun.train.packing.sampler import BatchGrouping
from dsrun.zero.ops import stage_of

# Where samples are so alike that padded batches hold more than this share of tokens, there is nothing to gain.
EVEN = 0.95
# A row is as long as the longest sample; where that is an outlier, as this share of the samples, and the longer ones
# have rows to themselves: attention without flash kernels costs the square of a row's length.
USUAL = 99
OUTLIER = 2
# A step of long samples has at least this part of the global batch, so that few micro batches are filler.
LEAST_SHARE = 2


@dataclass(frozen=True)
class BatchingPlan:
    """`split` counts rows where they are packed, else samples. `lengths` are tokens [samples, sides], None in a plain
    order, whose micro batches are joined without padding where `verdict` has a method for one row; `reason` says why
    samples are not packed, None where there is nothing to say."""

    grouping: BatchGrouping
    split: BatchSplit
    lengths: np.ndarray | None = None
    verdict: ProbeVerdict | None = None
    reason: str | None = None

    @property
    def method(self) -> PackingMethod | None:
        return self.verdict.method if self.verdict and self.grouping.kind != "budget" else None

    @property
    def facts(self) -> dict[str, Any]:
        """For run.json."""
        probed = self.verdict or ProbeVerdict(None, None, self.reason)
        return {"batches": self.grouping.kind, "per_step": self.grouping.per_step, **vars(probed)}

    def sentences(self, ranks: str) -> list[str]:
        """What the user is told, and what is for --debug; `ranks` is "2 GPUs"."""
        inside = [Internal(self.verdict.reason)] if self.verdict else []
        if self.method in ONE_ROW and self.grouping.kind == "plain":
            return ["the samples of a micro batch share one row, without padding", *inside]
        if self.lengths is None or self.grouping.kind == "plain":
            return []
        samples, tokens = self.grouping.global_batch, self.lengths.sum(1).mean()
        average = f"about {samples:,} samples, {samples * tokens:,.0f} tokens a step"
        if self.grouping.kind == "budget":
            reason = "this model does not keep packed samples apart" if self.verdict else self.reason
            return [f"samples of like lengths, {average}" + (f"; not packed: {reason}" if reason else ""), *inside]
        split, rows = self.split, self.split.global_batch
        steps = f"{split.accumulation} step{'' if split.accumulation == 1 else 's'}"
        shared = f"in {rows:,} row{'' if rows == 1 else 's'} of about {samples * tokens / rows:,.0f} tokens"
        return [
            f"samples share rows: {average}, {shared}",
            Internal(f"{rows:,} rows = {split.micro_batch} × {ranks} × {steps}"),
            *inside,
        ]


def decide_batching(
    plan: TrainingPlan, rows: Any, model: Any, *, loss: Any, strategy: str | None, saved: Any
) -> BatchingPlan:
    """How the training data `rows` are batched for `model`, which is probed; a collective under ZeRO-3. `strategy` is
    --train-sampling-strategy where it was given, `saved` the grouping of the checkpoint to go on from."""
    batch, spec = plan.batch, plan.recipe.spec
    split = BatchSplit(batch.micro_batch, plan.world.rank, plan.world.size, batch.accumulation, batch.sharing)
    plain = BatchingPlan(BatchGrouping("plain", batch.global_batch), split)
    if strategy or spec.pad_to_max_length or spec.long_context:
        return plain
    if not hasattr(rows, "__len__"):
        return _joined(plan, plain, model, loss)
    if len(rows) == 0 or (saved is not None and saved.kind == "plain"):
        return plain
    return _grouped(plan, plain, rows, model, loss=loss, saved=saved)


def _grouped(plan: TrainingPlan, plain: BatchingPlan, rows: Any, model: Any, *, loss: Any, saved: Any) -> BatchingPlan:
    """A table, packed or in samples of like lengths where either saves padding."""
    batch, spec, split = plan.batch, plan.recipe.spec, plain.split
    lengths = side_lengths(rows, both=plan.task == "seq2seq" and spec.task != "dpo")
    if lengths.sum(1).mean() > EVEN * lengths.max(axis=0).sum():
        return plain
    least = -(-batch.global_batch // LEAST_SHARE)
    budget = replace(plain, grouping=BatchGrouping("budget", batch.global_batch, least), lengths=lengths)
    reason = _cannot_pack(plan, loss, saved)
    if reason or batch.global_batch == 1:
        return replace(budget, reason=reason or "a step has a single sample")
    verdict = _probe(plan, model)
    if verdict.method is None:
        return replace(budget, verdict=verdict, reason=verdict.reason)
    grouping = BatchGrouping("packed", batch.global_batch, rows_per_step(lengths, batch.global_batch))
    return BatchingPlan(grouping, split_of_rows(split, grouping, lengths), lengths, verdict)


def _joined(plan: TrainingPlan, plain: BatchingPlan, model: Any, loss: Any) -> BatchingPlan:
    """A stream in its own order: how long the next samples are, is not known."""
    if plan.task == "seq2seq" or _cannot_pack(plan, loss):
        return plain
    verdict = _probe(plan, model)
    return replace(plain, verdict=verdict) if verdict.method in ONE_ROW else plain


def _probe(plan: TrainingPlan, model: Any) -> ProbeVerdict:
    spec = plan.recipe.spec
    is_whole = stage_of(plan.deepspeed) < 3 and not spec.quantization and not plan.recipe.hf.get("fsdp")
    dtype = None if plan.precision == "fp32" else DTYPES[plan.precision]
    if plan.world.device == "cuda" and is_whole and not all_ready(_moved(model, _engine_dtype(plan))):
        return ProbeVerdict(None, None, f"{type(model).__name__} was not probed: the GPU has no room for its weights")
    return probe(model, pairs=plan.task == "seq2seq", autocast=dtype)


def _engine_dtype(plan: TrainingPlan) -> torch.dtype | None:
    """The dtype to which DeepSpeed casts the weights, None where it does not."""
    section = (plan.deepspeed or {}).get(plan.precision)
    enabled = isinstance(section, dict) and section.get("enabled", "auto")
    return DTYPES[plan.precision] if enabled else None


def _moved(model: Any, dtype: torch.dtype | None) -> bool:
    """Whether the GPU has room for the model. Flash and flex attention have no kernels for CPUs; the engine would cast
    and move it a little later, in this order, so that the GPU never holds wider weights than in training."""
    cast_parameters(model, dtype)
    try:
        model.to("cuda")
    except torch.OutOfMemoryError:
        model.to("cpu")
        torch.cuda.empty_cache()
        return False
    return True


def cast_parameters(model: Any, dtype: torch.dtype | None) -> None:
    """As DeepSpeed's engine does: one parameter after another, and no buffers (`_cast_module_mixed_precision`)."""
    for parameter in model.parameters() if dtype else ():
        if parameter.dtype in (torch.float32, torch.float16, torch.bfloat16):
            parameter.data = parameter.data.to(dtype)


def _cannot_pack(plan: TrainingPlan, loss: Any, saved: Any = None) -> str | None:
    """Why these rows cannot be packed, whatever the model."""
    kinds = {"kind_of_loss": getattr(loss, "kind", None), "was": getattr(saved, "kind", None)}
    return reason_of("unpacked", spec=plan.recipe.spec, recipe=plan.recipe, plugin=plan.plugin, **kinds)


def rows_per_step(lengths: np.ndarray, global_batch: int) -> int:
    """Rows that hold a global batch on average, so many that each is about as long as the longest sample; a divisor of
    the global batch. `lengths` are tokens [samples, sides]."""
    mean, longest = lengths.mean(axis=0), lengths.max(axis=0)
    usual = np.percentile(lengths, USUAL, axis=0)
    wanted = np.where(longest > OUTLIER * usual, usual, longest)
    divisors = [each for each in range(2, global_batch + 1) if global_batch % each == 0]
    return global_batch // next((each for each in divisors if (each * mean >= wanted).all()), global_batch)


def split_of_rows(split: BatchSplit, grouping: BatchGrouping, lengths: np.ndarray) -> BatchSplit:
    """As many rows in a micro batch as take no more memory than the padded samples of `split`, and as many in a step as
    the ranks divide evenly: those of `grouping` where that is possible."""
    tokens, room = grouping.global_batch * lengths.sum(axis=1).mean(), split.micro_batch * lengths.max(axis=0).sum()
    each = -(-grouping.per_step // split.world_size)
    most = grouping.global_batch // split.world_size
    while each < most and tokens / (each * split.world_size) > room:
        each += 1
    width = max(tokens / (each * split.world_size), 1)
    micro = max(n for n in range(1, each + 1) if each % n == 0 and (n == 1 or n * width <= room))
    return replace(split, micro_batch=micro, accumulation=each // micro)


def batch_of_tokens(batch: BatchPlan, tokens: int, rows: Any, *, both: bool) -> BatchPlan:
    """The global batch that holds about `tokens` tokens on average (--global-batch-tokens)."""
    if not hasattr(rows, "__len__"):
        raise refusal("arguments.stream_tokens")
    mean = float(side_lengths(rows, both=both).sum(1).mean())
    unit = batch.micro_batch * batch.world_size
    samples = max(1, round(tokens / mean / unit)) * unit
    return replace(batch, global_batch=samples, accumulation=samples // unit)


def keep_grouping(saved: dict[str, Any] | None) -> BatchGrouping | None:
    """The grouping in a checkpoint's manifest; a checkpoint without one was trained on in a plain order."""
    if saved is None:
        return None
    return BatchGrouping(**saved.get("grouping", {"kind": "plain", "global_batch": saved.get("global_batch", 0)}))
