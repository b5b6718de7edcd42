"""One strategy evaluated: what it takes on GPU, host, NVMe and disk, its largest micro batch, and its speed."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from dsrun.zero.generate.presets import GIB
from dsrun.zero.memory.model.architecture import ModelShapes
from dsrun.zero.memory.peak import (
    GpuPeak,
    ZeroStrategy,
    accumulation,
    gpu,
    sharding_of,
    trained_groups,
)
from dsrun.zero.memory.plan_request import PlanRequest
from dsrun.zero.memory.rank.optimizers import TORCH_ADAMW
from dsrun.zero.memory.rank.states import checkpoint_bytes
from dsrun.zero.memory.speed import StepWork, estimate

FitVerdict = Literal["fits", "tight", "does not fit"]

LARGEST_MICRO_BATCH = 4096
NEARLY = 0.95
"""Strategies this close in speed count as equal; then the simplest wins."""
PROCESS = int(1.5 * GIB)
"""Host memory of one training process with torch and CUDA loaded and no model."""


@dataclass(frozen=True, kw_only=True)
class PlanCandidate:
    """A strategy's line in the table.

    `micro_batch` and `gpu` are for the largest micro batch within the preset's share, or for 1 when none is.
    Host and NVMe bytes are per node, `host_loading` while the weights are loaded; `relative` is the estimated speed
    over that of the fastest strategy that fits."""

    strategy: ZeroStrategy
    verdict: FitVerdict
    micro_batch: int
    accumulation: int
    gpu: GpuPeak
    host: int
    host_loading: int
    nvme: int
    checkpoint: int
    samples_per_second: float
    relative: float
    reason: str
    host_short: bool = False
    """Whether the GPUs have room for it, and the node's host memory has not."""


def strategies(request: PlanRequest) -> Iterator[ZeroStrategy]:
    """Every strategy that DeepSpeed has and the request does not rule out."""
    recompute = {"on": (True,), "off": (False,), "auto": (False, True)}[request.checkpointing]
    for stage, place in request.places:
        for checkpointing in recompute:
            yield ZeroStrategy(stage=stage, offload=place, checkpointing=checkpointing)


def bf16_strategies(request: PlanRequest) -> Iterator[ZeroStrategy]:
    """The same with bf16 master weights, on the GPU, where these save memory: torch's AdamW keeps its moments in the
    dtype of what it updates, and adapters are in fp32. The user's own JSON says by itself what it keeps."""
    able = request.precision == "bf16" and request.optimizer in TORCH_ADAMW
    if not able or request.lora or request.own_sizes:
        return
    for each in strategies(request):
        if each.stage > 0 and each.offload == "none":
            yield replace(each, bf16_master=True)


def largest_micro_batch(request: PlanRequest, strategy: ZeroStrategy, room: float) -> int:
    """The largest micro batch whose peak stays within `room` bytes; 0 when not even one sample does.

    With a global batch, the largest that divides a rank's share of it; only the request's own, where it has one."""
    if request.micro_batch is not None:
        return request.micro_batch if gpu(request, strategy, request.micro_batch).total <= room else 0
    share = request.global_batch and request.global_batch // request.groups
    low, high = 0, min(LARGEST_MICRO_BATCH, share or LARGEST_MICRO_BATCH)
    while low < high:
        middle = (low + high + 1) // 2
        if gpu(request, strategy, middle).total <= room:
            low = middle
        else:
            high = middle - 1
    return next((each for each in range(low, 0, -1) if share % each == 0), 0) if share else low


def evaluate(request: PlanRequest, strategy: ZeroStrategy) -> PlanCandidate:
    """The strategy's row, its speed not yet compared with the others'."""
    micro_batch = largest_micro_batch(request, strategy, request.budget)
    verdict: FitVerdict = "fits" if micro_batch else "tight"
    micro_batch = micro_batch or largest_micro_batch(request, strategy, request.limit)
    least = request.micro_batch or 1
    peak = gpu(request, strategy, micro_batch or least)
    host, loading = host_bytes(request, strategy, peak)
    host_short = bool(micro_batch) and max(host, loading) > request.host * GIB
    micro_batch = 0 if host_short else micro_batch
    sharding, trained = sharding_of(request, strategy), trained_groups(request.model, request.lora, request.bits)
    steps = accumulation(request, micro_batch or least)
    seconds, reason = estimate(
        StepWork(
            cluster=request.cluster,
            sharding=sharding,
            training=trained,
            active=active_parameters(request.model),
            tokens=(micro_batch or least) * request.tokens // request.sequence_parallel,
            micro_batches=steps,
            checkpointing=strategy.checkpointing,
            overlap=request.sizes.overlap,
        )
    )
    return PlanCandidate(
        strategy=strategy,
        verdict=verdict if micro_batch else "does not fit",
        micro_batch=micro_batch,
        accumulation=steps,
        gpu=peak,
        host=host,
        host_loading=loading,
        nvme=peak.states.nvme.total * request.cluster.per_node,
        checkpoint=checkpoint_bytes(trained, sharding),
        samples_per_second=(micro_batch or least) * steps * request.groups / seconds,
        relative=0.0,
        reason=reason,
        host_short=host_short,
    )


def candidates(request: PlanRequest) -> tuple[PlanCandidate, ...]:
    """Every strategy's row; where none fits, also of those with bf16 master weights, which are less exact and last."""
    rows = [evaluate(request, each) for each in strategies(request)]
    if all(row.verdict == "does not fit" for row in rows):
        rows += [evaluate(request, each) for each in bf16_strategies(request)]
    return compared(rows)


def compared(rows: list[PlanCandidate]) -> tuple[PlanCandidate, ...]:
    """The rows with their speed over that of the fastest that fits, of all when none does."""
    possible = [row.samples_per_second for row in rows if row.verdict != "does not fit"]
    fastest = max(possible or [row.samples_per_second for row in rows])
    return tuple(replace(row, relative=row.samples_per_second / fastest) for row in rows)


def best_of(rows: list[PlanCandidate]) -> PlanCandidate | None:
    """The fastest; of those nearly as fast, the one that comes first: low stages and no offload are simpler."""
    fastest = max((row.relative for row in rows), default=0.0)
    return next((row for row in rows if row.relative >= NEARLY * fastest), None)


def active_parameters(model: ModelShapes) -> int:
    """Parameters that one token goes through: of a mixture of experts, those it is sent to; no look-up tables."""
    total = 0
    for weight in model.tensors():
        share = 1.0
        if weight.kind == "experts" and len(weight.shape) == 3 and weight.shape[0] == model.decoder.experts:
            share = min(1.0, model.decoder.experts_per_token / weight.shape[0])
        if weight.kind not in ("embedding", "frozen"):
            total += int(weight.elements * share)
    return total + (model.vocabulary * model.hidden if model.tied else 0)


def host_bytes(request: PlanRequest, strategy: ZeroStrategy, peak: GpuPeak) -> tuple[int, int]:
    """Host bytes per node: in training, and while the weights are loaded.

    Every process holds the whole model before that moves to its GPU; under ZeRO-3 only rank 0 reads the checkpoint
    (taken to be 16-bit) and hands it out (transformers 5.23, _load_state_dict_into_zero3_model)."""
    ranks, parameters = request.cluster.per_node, request.model.parameters
    loading = 2 * parameters if strategy.stage == 3 else request.weights * parameters * ranks
    held = peak.states.host_bytes if request.sizes.pinned else peak.states.host.total
    return ranks * (PROCESS + held), ranks * PROCESS + loading
