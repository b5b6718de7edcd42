"""A rough time per training step, good for comparing strategies and for nothing else.

Compute and communication are counted as in Rajbhandari et al. 2020, section 7 (ZeRO-3 moves 1.5 times the bytes of
DDP) and Ren et al. 2021 (offload's traffic over PCIe); what overlaps is counted once. The bandwidths are typical of the
hardware, not measured: only ratios of the results are shown.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsrun.zero.memory.request import Cluster
from dsrun.zero.memory.states import Sharding

GIGA = 1e9
USUAL_TFLOPS = 150.0
"""Dense bf16 peak assumed of a GPU that is not in the table, in 10^12 operations per second."""
EFFICIENCY = 0.5
"""Share of the peak that large matrix products reach in training."""
HALF_EFFICIENT = 512
"""Tokens in a micro batch at which half of that is reached."""
NVLINK, PCIE, NETWORK = 200.0, 16.0, 25.0
"""10^9 bytes per second and GPU: between GPUs of a node with and without NVLink, and between nodes."""
HOST_ADAM = 4e9
"""Parameters per second and node that DeepSpeed's CPU Adam updates; bound by the host's memory bandwidth."""
NVME = 5.0
"""10^9 bytes per second and node."""
HIDDEN = 0.85
"""Share of the shorter of compute and communication that overlap hides."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Seconds per optimizer step, and what most of them are spent on."""

    seconds: float
    reason: str


def estimate(
    *,
    cluster: Cluster,
    sharding: Sharding,
    parameters: int,
    trainable: int,
    active: int,
    micro_batch: int,
    steps: int,
    tokens: int,
    checkpointing: bool,
    overlap: bool,
) -> Estimate:
    """One optimizer step of `steps` micro batches of `micro_batch` samples with `tokens` tokens each, on every rank.

    `parameters`, `trainable` and `active` count elements: all, those updated, and those one token goes through.
    """
    compute = _compute(
        cluster,
        active=active,
        trainable=trainable,
        parameters=parameters,
        tokens=micro_batch * tokens,
        steps=steps,
        checkpointing=checkpointing,
    )
    moved = _communication(cluster, sharding, parameters, trainable, steps)
    hidden = HIDDEN * min(compute, moved) if overlap else 0.0
    host = _offload(cluster, sharding, trainable, steps)
    parts = {
        "recomputing" if checkpointing else "computing": compute,
        _words(sharding): moved,
        f"the optimizer on {'NVMe' if sharding.offload == 'nvme' else 'the CPU'}": host,
    }
    seconds = compute + moved - hidden + host
    return Estimate(seconds=seconds, reason=_reason(parts, seconds, checkpointing))


def _compute(
    cluster: Cluster, *, active: int, trainable: int, parameters: int, tokens: int, steps: int, checkpointing: bool
) -> float:
    """2 operations per parameter and token forward, 4 backward (Kaplan et al. 2020), 2 of them for weight gradients."""
    operations = 4 + 2 * min(1.0, trainable / parameters) + (2 if checkpointing else 0)
    peak = (cluster.model.bf16_tflops or USUAL_TFLOPS) * 1e12 * EFFICIENCY
    reached = tokens / (tokens + HALF_EFFICIENT)
    return steps * operations * active * tokens / (peak * reached)


def _communication(cluster: Cluster, sharding: Sharding, parameters: int, trainable: int, steps: int) -> float:
    if cluster.world == 1:
        return 0.0
    inside = NVLINK if cluster.has_nvlink else PCIE
    speed = min(inside, NETWORK) if cluster.nodes > 1 else inside
    width = sharding.width
    share = (cluster.world - 1) / cluster.world
    if sharding.stage == 0:
        moved = 2 * 4 * trainable
    elif sharding.stage == 1:
        moved = 2 * width * trainable
    elif sharding.stage == 2:
        # Gradients are reduced after every micro batch, weights gathered once a step.
        moved = width * trainable * (steps + 1)
    else:
        moved = steps * width * (2 * parameters + trainable)
    return share * moved / (speed * GIGA)


def _offload(cluster: Cluster, sharding: Sharding, trainable: int, steps: int) -> float:
    if sharding.offload == "none":
        return 0.0
    share = trainable / cluster.world
    copies = (steps + 1) * sharding.width * share / (PCIE * GIGA)
    update = share * cluster.per_node / HOST_ADAM
    if sharding.offload == "cpu":
        return copies + update
    # Master copy and moments are read and written, gradients written and read.
    return copies + update + share * cluster.per_node * 32 / (NVME * GIGA)


def _words(sharding: Sharding) -> str:
    return "gathering parameters" if sharding.stage == 3 else "reducing gradients"


def _reason(parts: dict[str, float], seconds: float, checkpointing: bool) -> str:
    """What the step waits for."""
    longest = max(parts, key=lambda each: parts[each])
    if longest == "recomputing":
        return "a quarter of the computing is done twice"
    if longest == "computing":
        return "bound by computing"
    again = ", and layers are computed twice" if checkpointing else ""
    return f"{longest} takes {min(1.0, parts[longest] / seconds):.0%} of the step{again}"
