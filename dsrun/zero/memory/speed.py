"""A rough time per training step, good for comparing strategies and for nothing else.

Compute and communication are counted as in Rajbhandari et al. 2020, section 7 (ZeRO-3 moves 1.5 times the bytes of
DDP) and Ren et al. 2021 (offload's traffic over PCIe); what overlaps is counted once. The bandwidths are typical of the
hardware, not measured: only ratios of the results are shown."""

from typing import NamedTuple

from dsrun.zero.memory.model.architecture import ParameterGroups
from dsrun.zero.memory.plan_request import GpuCluster
from dsrun.zero.memory.rank.states import StateSharding

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


class StepWork(NamedTuple):
    """One optimizer step of `micro_batches` micro batches with `tokens` tokens each, on every rank.

    `active` counts the parameters that one token goes through."""

    cluster: GpuCluster
    sharding: StateSharding
    training: ParameterGroups
    active: int
    tokens: int
    micro_batches: int
    checkpointing: bool
    overlap: bool


def estimate(step: StepWork) -> tuple[float, str]:
    """Seconds per optimizer step, and what most of them are spent on."""
    compute, moved, host = _compute(step), _communication(step), _offload(step)
    hidden = HIDDEN * min(compute, moved) if step.overlap else 0.0
    parts = {
        "recomputing" if step.checkpointing else "computing": compute,
        "gathering parameters" if step.sharding.stage == 3 else "reducing gradients": moved,
        f"the optimizer on {'NVMe' if step.sharding.offload == 'nvme' else 'the CPU'}": host,
    }
    seconds = compute + moved - hidden + host
    longest = max(parts, key=lambda each: parts[each])
    if longest in _COMPUTING:
        return seconds, _COMPUTING[longest]
    again = ", and layers are computed twice" if step.checkpointing else ""
    return seconds, f"{longest} takes {min(1.0, parts[longest] / seconds):.0%} of the step{again}"


_COMPUTING = {"recomputing": "a quarter of the computing is done twice", "computing": "bound by computing"}
"""What the step waits for, where that is none of the others."""


def _compute(step: StepWork) -> float:
    """2 operations per parameter and token forward, 4 backward (Kaplan et al. 2020), 2 of them for weight gradients."""
    trained = min(1.0, step.training.trainable / step.training.parameters)
    operations = 4 + 2 * trained + (2 if step.checkpointing else 0)
    peak = (step.cluster.model.bf16_tflops or USUAL_TFLOPS) * 1e12 * EFFICIENCY
    reached = step.tokens / (step.tokens + HALF_EFFICIENT)
    return step.micro_batches * operations * step.active * step.tokens / (peak * reached)


def _communication(step: StepWork) -> float:
    cluster, width, trainable = step.cluster, step.sharding.width, step.training.trainable
    if cluster.world == 1:
        return 0.0
    inside = NVLINK if cluster.has_nvlink else PCIE
    speed = min(inside, NETWORK) if cluster.nodes > 1 else inside
    moved = {
        0: 2 * 4 * trainable,
        1: 2 * width * trainable,
        # Gradients are reduced after every micro batch, weights gathered once a step.
        2: width * trainable * (step.micro_batches + 1),
        3: step.micro_batches * width * (2 * step.training.parameters + trainable),
    }[step.sharding.stage]
    return (cluster.world - 1) / cluster.world * moved / (speed * GIGA)


def _offload(step: StepWork) -> float:
    if step.sharding.offload == "none":
        return 0.0
    share = step.training.trainable / step.cluster.world
    copies = (step.micro_batches + 1) * step.sharding.width * share / (PCIE * GIGA)
    update = share * step.cluster.per_node / HOST_ADAM
    if step.sharding.offload != "nvme":
        return copies + update
    # Master copy and moments are read and written, gradients written and read.
    return copies + update + share * step.cluster.per_node * 32 / (NVME * GIGA)
