"""One strategy evaluated: what it takes on GPU, host, NVMe and disk, its largest micro batch, and its speed."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, NamedTuple

from dsrun.engine_options import offloaded_to
from dsrun.zero.generate.presets import FROM_STEPS, GIB, nvme_buffer, takes_fp32_sum
from dsrun.zero.memory.activations import (
    FRAGMENTATION,
    GATHERING,
    STEPPING,
    TAKEN,
    ActivationBytes,
    BufferBytes,
    TokenBatch,
    activations,
    buffers,
)
from dsrun.zero.memory.model.architecture import ModelShapes, training
from dsrun.zero.memory.optimizers import ADAMW, TORCH_ADAMW, state_bytes
from dsrun.zero.memory.plan_request import PlanRequest
from dsrun.zero.memory.speed import StepWork, estimate
from dsrun.zero.memory.states import FP32, RankStates, StateOffload, StateSharding, checkpoint_bytes, states

FitVerdict = Literal["fits", "tight", "does not fit"]

LARGEST_MICRO_BATCH = 4096
NEARLY = 0.95
"""Strategies this close in speed count as equal; then the simplest wins."""
PROCESS = int(1.5 * GIB)
"""Host memory of one training process with torch and CUDA loaded and no model."""


@dataclass(frozen=True, kw_only=True)
class ZeroStrategy:
    """A ZeRO stage, where its states are offloaded to, whether activations are recomputed, and whether master weights
    and moments are in bf16 (`dsrun config --bf16-master-weights`), which is less exact."""

    stage: int
    offload: StateOffload
    checkpointing: bool
    bf16_master: bool = False

    def __str__(self) -> str:
        place = "" if self.offload == "none" else f" + {self.offload} offload"
        master = ", bf16 master weights" if self.bf16_master else ""
        return f"ZeRO-{self.stage}{place}{', recomputing activations' if self.checkpointing else ''}{master}"


class GpuPeak(NamedTuple):
    """Bytes of one GPU at the peak of a step with one micro batch size.

    That is one of three moments: where the loss is computed, which is before the gradients are made; where the backward
    pass is in a layer; or in the optimizer's step, where activations and gathered weights are gone. `late` are the
    gradients that are not there yet at the first.
    """

    states: RankStates
    buffers: BufferBytes
    activations: ActivationBytes
    factor: float = 1.0
    late: int = 0

    @property
    def moment(self) -> Literal["loss", "layer", "step"]:
        """Which of the three."""
        return max(self._moments, key=lambda each: self._moments[each].total)

    @property
    def at_step(self) -> bool:
        """Whether the peak is in the optimizer's step."""
        return self.moment == "step"

    @property
    def reserve(self) -> int:
        """What the allocator cannot use again at the peak."""
        return self._moments[self.moment].reserve

    @property
    def total(self) -> int:
        most = max(each.total for each in self._moments.values())
        return int((self.states.gpu.total + self.buffers.context + most) * self.factor)

    @property
    def _moments(self) -> dict[Literal["loss", "layer", "step"], "PeakMoment"]:
        held, kept, step = self.buffers, self.activations, self.states.step
        there = held.total - held.context
        traffic = (GATHERING if held.gathered else FRAGMENTATION) * (held.buckets + held.gathered)
        loss = FRAGMENTATION * (kept.kept if kept.cast else kept.kept + kept.logits) + kept.cast
        layer = FRAGMENTATION * (kept.kept + kept.working)
        return {
            "loss": PeakMoment(there + kept.kept + kept.logits - self.late, int(loss + traffic) + self._taken),
            "layer": PeakMoment(there + kept.kept + kept.working, int(layer + traffic)),
            "step": PeakMoment(step, int(STEPPING * step) + (kept.cast if step else 0)),
        }

    @property
    def _taken(self) -> int:
        """Of the blocks of whole logits those that the optimizer's states, made after the first backward pass, have
        taken parts of, where no activations of layers had left others."""
        return max(0, min(int(TAKEN * self.activations.cast), self.states.gpu.optimizer - self.activations.kept))


class PeakMoment(NamedTuple):
    """Bytes that are there only then, and those that the allocator cannot use again."""

    come: int
    reserve: int

    @property
    def total(self) -> int:
        return self.come + self.reserve


@dataclass(frozen=True, kw_only=True)
class PlanCandidate:
    """A strategy's line in the table.

    `micro_batch` and `gpu` are for the largest micro batch within the preset's share, or for 1 when none is.
    Host and NVMe bytes are per node, `host_loading` while the weights are loaded; `relative` is the estimated speed
    over that of the fastest strategy that fits.
    """

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


_training = lru_cache(maxsize=64)(training)


@lru_cache(maxsize=512)
def _states(model: ModelShapes, lora: int | None, bits: int | None, sharding: StateSharding) -> RankStates:
    return states(_training(model, lora, bits), sharding)


def sharding_of(request: PlanRequest, strategy: ZeroStrategy) -> StateSharding:
    """The strategy over the request's ranks. Without a global batch a step may have any number of micro batches."""
    share = request.global_batch and request.global_batch // request.groups
    return StateSharding(
        stage=strategy.stage,
        offload=strategy.offload,
        world=request.cluster.world,
        precision=request.precision,
        accumulates=share != 1,
        persistence=request.sizes.persistence,
        sub_group=request.sizes.sub_group,
        moments=state_bytes(request.optimizer, stage=strategy.stage, weights=request.weights)
        / (2 if strategy.bf16_master else 1),
        bf16_master=strategy.bf16_master,
        weights=request.weights,
        nvme_buffer=nvme_buffer(request.model.largest, request.cluster.world),
    )


def gpu(request: PlanRequest, strategy: ZeroStrategy, micro_batch: int) -> GpuPeak:
    """One GPU's memory with this strategy and micro batch."""
    sharding = sharding_of(request, strategy)
    if sums_in_fp32(request, strategy, micro_batch):
        sharding = replace(sharding, sums_in_fp32=True)
    trained = _training(request.model, request.lora, request.bits)
    work = request.work(micro_batch, stage=strategy.stage, checkpointing=strategy.checkpointing)
    held, kept = _states(request.model, request.lora, request.bits, sharding), activations(request.model, work)
    if request.trainer != "dsrun" and request.optimizer == ADAMW:
        held = held._replace(step=held.step + held.gpu.optimizer // 2)
    if request.bits:
        held, kept = _with_quantised(request, work, held, kept)
    if request.beside:
        held = _with_other(held, request.beside.parameters, sharding)
        if request.trainer == "dsrun":  # TRL's has tiles of logits, as its model
            other = work.width * work.micro_batch * work.length * request.beside.vocabulary
            kept = kept._replace(logits=kept.logits + other)
    return GpuPeak(
        states=held,
        buffers=buffers(
            request.model,
            trained,
            sharding,
            request.sizes,
            checkpointing=strategy.checkpointing,
            nvls=request.cluster.has_nvls,
        ),
        activations=kept,
        factor=request.factor,
        # ZeRO-3 has a place for its shares of them all the time.
        late=held.gpu.gradients if strategy.stage < 3 and _is_one_pass(request, micro_batch) else 0,
    )


def _with_quantised(
    request: PlanRequest, work: TokenBatch, held: RankStates, kept: ActivationBytes
) -> tuple[RankStates, ActivationBytes]:
    """With a layer's weights as the products take them, forward and backward; and with what is not quantised in fp32,
    where the request upcasts it: of the output embedding autocast then makes a copy of 16 bits."""
    kept = kept._replace(working=kept.working + work.width * request.model.largest_linear)
    if request.upcasts:
        rest = sum(weight.elements for weight in request.model.tensors() if weight.kind != "linear")
        parameters = held.gpu.parameters + (FP32 - work.width) * rest
        held = held._replace(gpu=held.gpu._replace(parameters=parameters))
        kept = kept._replace(cast=kept.cast + work.width * request.model.vocabulary * request.model.hidden)
    return held, kept


def _with_other(held: RankStates, parameters: int, sharding: StateSharding) -> RankStates:
    """With the weights of a model that is only read: sharded under ZeRO-3, and where that keeps the trained ones."""
    place = {"cpu": "host", "nvme": "nvme"}.get(sharding.offload, "gpu") if sharding.stage == 3 else "gpu"
    size = sharding.width * -(-parameters // (sharding.world if sharding.stage == 3 else 1))
    more = {place: getattr(held, place)._replace(parameters=getattr(held, place).parameters + size)}
    return RankStates(**held._asdict() | more)


def sums_in_fp32(request: PlanRequest, strategy: ZeroStrategy, micro_batch: int) -> bool:
    """Whether bf16 gradients are summed in fp32: where the user's own JSON or dsrun's configuration says so."""
    if strategy.bf16_master:  # dsrun's configurations then sum as the model is (blocks.accumulation)
        return False
    if request.trainer != "dsrun" and request.sums_in_fp32 is None:  # DeepSpeed's default
        return False
    if request.sums_in_fp32 is not None:
        return request.sums_in_fp32 and request.precision != "fp32" and strategy.stage > 0
    able = request.precision == "bf16" and takes_fp32_sum(strategy.stage, offloaded_to(strategy.offload))
    return able and _accumulation(request, micro_batch) >= FROM_STEPS


def largest_micro_batch(request: PlanRequest, strategy: ZeroStrategy, room: float) -> int:
    """The largest micro batch whose peak stays within `room` bytes; 0 when not even one sample does.

    With a global batch, the largest that divides a rank's share of it; only the request's own, where it has one.
    """
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
    sharding, trained = sharding_of(request, strategy), _training(request.model, request.lora, request.bits)
    steps = _accumulation(request, micro_batch or least)
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


def _is_one_pass(request: PlanRequest, micro_batch: int) -> bool:
    """Whether a step is known to have a single micro batch."""
    return request.global_batch is not None and _accumulation(request, micro_batch) == 1


def _accumulation(request: PlanRequest, micro_batch: int) -> int:
    return 1 if request.global_batch is None else request.global_batch // (request.groups * micro_batch)


def host_bytes(request: PlanRequest, strategy: ZeroStrategy, peak: GpuPeak) -> tuple[int, int]:
    """Host bytes per node: in training, and while the weights are loaded.

    Every process holds the whole model before that moves to its GPU; under ZeRO-3 only rank 0 reads the checkpoint
    (taken to be 16-bit) and hands it out (transformers 5.23, _load_state_dict_into_zero3_model).
    """
    ranks, parameters = request.cluster.per_node, request.model.parameters
    loading = 2 * parameters if strategy.stage == 3 else request.weights * parameters * ranks
    held = peak.states.host_bytes if request.sizes.pinned else peak.states.host.total
    return ranks * (PROCESS + held), ranks * PROCESS + loading
