"""What a look at a run shows to be wrong: GPUs that wait while they are busy, throttled ones, silent and slow ranks."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence

from dsrun.findings.finding import Finding
from dsrun.messages import Message, joined
from dsrun.monitoring.status import STALE_S, RunStatus
from dsrun.monitoring.straggler import SLOWER_BY
from dsrun.runs.node_status import NodeStatus, RankProgress
from dsrun.runs.values import seconds_of
from dsrun.system.display import duration, precise_duration
from dsrun.system.gpu_samples import GpuSample

# NVML counts the time in which any kernel ran (nvmlUtilization_t in nvml.h), one that only spins too.
BUSY = 0.95
LOW_POWER = 0.4
"""A GPU that computes draws most of its power limit; a collective that waits for another rank keeps it busy at a third
of that, as its kernel spins."""
_MOST = 4
# What NVML's reasons mean to who pays for the GPUs.
_REASONS = {
    "sw_power_cap": Message("at its power limit"),
    "hw_slowdown": Message("slowed down by the hardware"),
    "sw_thermal_slowdown": Message("too hot"),
    "hw_thermal_slowdown": Message("much too hot"),
    "hw_power_brake": Message("power brake"),
}


def is_waiting_while_busy(gpu: GpuSample) -> bool:
    """Whether a GPU counts as busy and draws so little power that it cannot be computing."""
    if gpu.utilization is None or gpu.power_w is None or not gpu.power_limit_w:
        return False
    return gpu.utilization >= BUSY and gpu.power_w < LOW_POWER * gpu.power_limit_w


def throttle_reasons(gpu: GpuSample) -> tuple[str, ...]:
    """Why the GPU is slowed down, in words. A power cap alone is how a busy GPU works and no reason."""
    return tuple(_REASONS.get(reason, reason) for reason in gpu.throttled if reason != "sw_power_cap")


def wait_share(rank: RankProgress) -> float | None:
    """The share of a step in which the rank waits for others; None where it is not known."""
    return rank.wait_s / rank.step_s if rank.wait_s is not None and rank.step_s else None


def slowest(ranks: Sequence[RankProgress]) -> RankProgress | None:
    """The rank that holds the others up: behind in steps, or by SLOWER_BY above the median; None if alike."""
    training = [rank for rank in ranks if rank.phase in ("training", "running")]
    if len(training) < 2:
        return None
    last = min(training, key=lambda rank: rank.step)
    if statistics.median(rank.step for rank in training) - last.step > 1:
        return last
    known = [(work, rank.rank, rank) for rank in training if (work := rank.own_s) is not None]
    if len(known) < 2:
        return None
    work, _, rank = max(known)
    return rank if work > (1 + SLOWER_BY) * statistics.median(each for each, _, _ in known) else None


def node_age_s(node: NodeStatus, now: float) -> float:
    """Seconds since the node's status was written, 0 for one that is as new as it gets."""
    written = seconds_of({"time": node.time})
    age = 0.0 if written is None else max(0.0, now - written)
    return age if age > STALE_S else 0.0


def silence_s(rank: RankProgress, node: NodeStatus, now: float) -> float:
    """Seconds since the rank's last heartbeat, as far as is known."""
    return rank.silent_s + node_age_s(node, now)


def observe(status: RunStatus, nodes: Sequence[NodeStatus], now: float) -> tuple[Finding, ...]:
    """What is wrong with a run that goes on, the worst first; nothing of one that is over."""
    if status.is_over:
        return ()
    found = [
        *_silent_nodes(nodes, now),
        *_silent_ranks(nodes, now),
        *_waiting_gpus(status, nodes, now),
        *_throttled_gpus(nodes),
        *_stragglers(nodes),
    ]
    return tuple(sorted(found, key=lambda each: each.level != "error"))


def _silent_nodes(nodes: Sequence[NodeStatus], now: float) -> Iterator[Finding]:
    ages = [(node, node_age_s(node, now)) for node in nodes]
    silent = [(node, age) for node, age in ages if age]
    if not silent:
        return
    names = _listed(Message("{host} for {age}", host=node.host, age=duration(age)) for node, age in silent)
    yield Finding(
        level="warning",
        code="silent_node",
        message=Message("no status from {names}", names=names),
        fix=Message("is the node up, and its clock right?"),
    )


def _silent_ranks(nodes: Sequence[NodeStatus], now: float) -> Iterator[Finding]:
    for node in nodes:
        if node_age_s(node, now):
            continue
        silent = [rank for rank in node.ranks if rank.is_silent]
        if silent:
            longest = max(silent, key=lambda rank: rank.silent_s)
            who = Message("rank {rank}", rank=longest.rank)
            if len(silent) > 1:
                who = Message("ranks {ranks}", ranks=_listed(str(rank.rank) for rank in silent))
            if len(silent) == len(node.ranks) > 1:
                who = Message("all {number} ranks", number=len(silent))
            yield Finding(
                level="warning",
                code="silent_rank",
                message=Message(
                    "no heartbeat from {who} of {host} for {silence}, in {phase}",
                    who=who,
                    host=node.host,
                    silence=duration(longest.silent_s),
                    phase=longest.phase,
                ),
                fix=Message("dsrun diagnose tells more once the watchdog has seen a hang"),
                where=f"rank {longest.rank}",
            )


def _waiting_gpus(status: RunStatus, nodes: Sequence[NodeStatus], now: float) -> Iterator[Finding]:
    waiting = [
        (node, gpu) for node in nodes if not node_age_s(node, now) for gpu in node.gpus if is_waiting_while_busy(gpu)
    ]
    if not waiting:
        return
    longest = max((rank.silent_s for node in nodes for rank in node.ranks), default=status.silent_s or 0.0)
    is_stuck = longest > max(10.0, 3 * (status.step_s or 0.0))
    node, gpu = waiting[0]
    busy = Message(
        "{gpus} is busy at low power ({power:.0f} of {limit:.0f} W)"
        if len(waiting) == 1
        else "{gpus} are busy at low power ({power:.0f} of {limit:.0f} W)",
        gpus=_gpus(waiting),
        power=gpu.power_w,
        limit=gpu.power_limit_w,
    )
    if not is_stuck:
        yield Finding(
            level="warning",
            code="waiting_gpu",
            where=f"{node.host}, GPU {gpu.index}",
            message=Message("{busy}: waiting for other ranks or for memory rather than computing", busy=busy),
            fix=Message("see which rank waits least"),
        )
        return
    others = [(node, gpu) for node in nodes for gpu in node.gpus if not is_waiting_while_busy(gpu)]
    yield Finding(
        level="error",
        code="stuck_collective",
        where=f"{node.host}, GPU {gpu.index}",
        message=Message(
            "probably a stuck collective: no rank has made a step for {silence}, and {busy}",
            silence=duration(longest),
            busy=busy,
        ),
        fix=Message("look at the rank on {gpus}, which does not wait", gpus=_gpus(others))
        if others
        else Message("look for a rank that has left"),
    )


def _throttled_gpus(nodes: Sequence[NodeStatus]) -> Iterator[Finding]:
    found = [(node, gpu, reasons) for node in nodes for gpu in node.gpus if (reasons := throttle_reasons(gpu))]
    for node, gpu, reasons in found[:_MOST]:
        yield Finding(
            level="warning",
            code="throttled_gpu",
            message=Message(
                "GPU {index} of {host} is slowed down: {reasons}"
                if gpu.temperature_c is None
                else "GPU {index} of {host} is slowed down at {heat} °C: {reasons}",
                index=gpu.index,
                host=node.host,
                heat=gpu.temperature_c,
                reasons=joined(", ", reasons),
            ),
            fix=Message("check its cooling and power; every rank waits for it"),
            where=f"{node.host}, GPU {gpu.index}",
        )


def _stragglers(nodes: Sequence[NodeStatus]) -> Iterator[Finding]:
    ranks = [(node, rank) for node in nodes for rank in node.ranks]
    slow = slowest([rank for _, rank in ranks])
    if slow is None:
        return
    host = next(node.host for node, rank in ranks if rank is slow)
    works = [work for _, rank in ranks if (work := rank.own_s) is not None]
    own = slow.own_s
    how = Message("it is at step {step}", step=slow.step)
    if own and works:
        how = Message(
            "its work takes {own} a step, {works} elsewhere",
            own=precise_duration(own),
            works=precise_duration(statistics.median(works)),
        )
    yield Finding(
        level="warning",
        code="slow_rank",
        message=Message("rank {rank} on {host} is slower than the others: {how}", rank=slow.rank, host=host, how=how),
        fix=Message("compare its GPU's clocks and its data with the others'"),
        where=f"rank {slow.rank}",
    )


def _gpus(found: Sequence[tuple[NodeStatus, GpuSample]]) -> Message:
    """GPU 3 of gpu01; GPUs 0, 1 and 4 more of gpu01; GPU 0 of gpu01, GPU 7 of gpu02."""
    hosts = {node.host for node, _ in found}
    if len(hosts) > 1:
        return _listed(Message("GPU {index} of {host}", index=gpu.index, host=node.host) for node, gpu in found)
    indices = _listed(str(gpu.index) for _, gpu in found)
    several = len(found) > 1
    return Message("GPUs {index} of {host}" if several else "GPU {index} of {host}", index=indices, host=hosts.pop())


def _listed(names: Iterable[str]) -> Message:
    """The first few of many."""
    known = list(names)
    shown = joined(", ", known[:_MOST])
    return Message("{names} and {number} more", names=shown, number=len(known) - _MOST) if known[_MOST:] else shown
