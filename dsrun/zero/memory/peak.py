"""One GPU's memory at the peak of a step, in bytes."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, NamedTuple

from dsrun.engine_options import offloaded_to
from dsrun.zero.generate.presets import FROM_STEPS, nvme_buffer, takes_fp32_sum
from dsrun.zero.memory.model.architecture import ModelShapes, training
from dsrun.zero.memory.plan_request import PlanRequest
from dsrun.zero.memory.rank.activations import ActivationBytes, TokenBatch, activations
from dsrun.zero.memory.rank.buffers import FRAGMENTATION, GATHERING, STEPPING, TAKEN, BufferBytes, buffers
from dsrun.zero.memory.rank.optimizers import ADAMW, lifted_bytes, state_bytes
from dsrun.zero.memory.rank.states import FP32, RankStates, StateOffload, StateSharding, states


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
    gradients that are not there yet at the first, of which `first` is made before those of the layers."""

    states: RankStates
    buffers: BufferBytes
    activations: ActivationBytes
    factor: float = 1.0
    late: int = 0
    first: int = 0

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
        there = held.total - held.context + kept.kept
        traffic = (GATHERING if held.gathered else FRAGMENTATION) * (held.buckets + held.gathered)
        always = int(FRAGMENTATION * kept.kept + traffic)
        # Whole logits leave their own gaps; beside losses in pieces those show that the step's flat gradients left.
        loss = kept.cast + self._taken if kept.cast else int(FRAGMENTATION * kept.logits + STEPPING * self.late)
        layer = int(FRAGMENTATION * kept.working + STEPPING * self._coming)
        return {
            "loss": PeakMoment(there + kept.logits - self.late, always + loss),
            "layer": PeakMoment(there + kept.working - self._coming, always + layer),
            "step": PeakMoment(step, int(STEPPING * step) + (kept.cast if step else 0)),
        }

    @property
    def absent(self) -> int:
        """The gradients that are not there at the peak."""
        return {"loss": self.late, "layer": self._coming, "step": 0}[self.moment]

    @property
    def _coming(self) -> int:
        """Of a single micro batch gradients come as kept activations go: first that of the output embedding, beside all
        activations, and last all, beside none."""
        return min(self.late - self.first, self.activations.kept) if self.late else 0

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


trained_groups = lru_cache(maxsize=64)(training)


@lru_cache(maxsize=512)
def _states(model: ModelShapes, lora: int | None, bits: int | None, sharding: StateSharding) -> RankStates:
    return states(trained_groups(model, lora, bits), sharding)


def sharding_of(request: PlanRequest, strategy: ZeroStrategy) -> StateSharding:
    """The strategy over the request's ranks. Without a global batch a step may have any number of micro batches."""
    share = request.global_batch and request.global_batch // request.groups
    moments = state_bytes(request.optimizer, stage=strategy.stage, weights=request.weights)
    if request.lora is None:  # adapters are hidden matrices
        lifted = lifted_bytes(request.optimizer, request.model, stage=strategy.stage)
        moments += lifted / trained_groups(request.model, None, None).trainable
    return StateSharding(
        stage=strategy.stage,
        offload=strategy.offload,
        world=request.cluster.world,
        precision=request.precision,
        accumulates=share != 1,
        persistence=request.sizes.persistence,
        sub_group=request.sizes.sub_group,
        moments=moments / (2 if strategy.bf16_master else 1),
        bf16_master=strategy.bf16_master,
        weights=request.weights,
        nvme_buffer=nvme_buffer(request.model.largest, request.cluster.world),
    )


def gpu(request: PlanRequest, strategy: ZeroStrategy, micro_batch: int) -> GpuPeak:
    """One GPU's memory with this strategy and micro batch."""
    sharding = sharding_of(request, strategy)
    if sums_in_fp32(request, strategy, micro_batch):
        sharding = replace(sharding, sums_in_fp32=True)
    trained = trained_groups(request.model, request.lora, request.bits)
    work = request.work(micro_batch, stage=strategy.stage, checkpointing=strategy.checkpointing)
    held, kept = _states(request.model, request.lora, request.bits, sharding), activations(request.model, work)
    if request.trainer != "dsrun" and request.optimizer == ADAMW:
        held = held._replace(step=held.step + held.gpu.optimizer // 2)
    if request.bits:
        held, kept = _with_quantised(request, work, held, kept)
    if request.beside:
        held = _with_other(held, request.beside.parameters, sharding)
        # A teacher's logits are there with the student's; DPO's reference has given its back by then.
        if request.rows == 1:
            other = work.width * work.micro_batch * work.length * request.beside.vocabulary
            kept = kept._replace(logits=kept.logits + other)
    # ZeRO-3 has a place for its shares of them all the time.
    late = held.gpu.gradients if strategy.stage < 3 and _is_one_pass(request, micro_batch) else 0
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
        late=late,
        first=0 if request.lora else min(late, sharding.width * request.model.vocabulary * request.model.hidden),
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
    return able and accumulation(request, micro_batch) >= FROM_STEPS


def _is_one_pass(request: PlanRequest, micro_batch: int) -> bool:
    """Whether a step is known to have a single micro batch."""
    return request.global_batch is not None and accumulation(request, micro_batch) == 1


def accumulation(request: PlanRequest, micro_batch: int) -> int:
    """Micro batches of a step; one where the global batch is not known."""
    return 1 if request.global_batch is None else request.global_batch // (request.groups * micro_batch)
