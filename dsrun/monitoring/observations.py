"""What a look at a run shows to be wrong: GPUs that wait while they are busy, throttled ones, silent and slow ranks."""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dsrun.findings.finding import Finding, finding_of, text_of, worst_first
from dsrun.machine.gpu_samples import GpuSample
from dsrun.messages import Message, joined
from dsrun.monitoring.run_status import RunStatus
from dsrun.monitoring.straggler import SLOWER_BY
from dsrun.runs.folder import STALE_S
from dsrun.runs.node_status import NodeStatus, RankProgress
from dsrun.runs.records import seconds_of
from dsrun.system.terminal.display import duration, precise_duration

# NVML counts the time in which any kernel ran (nvmlUtilization_t in nvml.h), one that only spins too.
BUSY = 0.95
LOW_POWER = 0.4
"""A GPU that computes draws most of its power limit; a collective that waits for another rank keeps it busy at a third
of that, as its kernel spins."""
_MOST = 4
# What NVML's reasons mean to who pays for the GPUs is in the texts.
_REASONS = ("hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake")


def is_waiting_while_busy(gpu: GpuSample) -> bool:
    """Whether a GPU counts as busy and draws so little power that it cannot be computing."""
    if gpu.utilization is None or gpu.power_w is None or not gpu.power_limit_w:
        return False
    return gpu.utilization >= BUSY and gpu.power_w < LOW_POWER * gpu.power_limit_w


def throttle_reasons(gpu: GpuSample) -> tuple[str, ...]:
    """Why the GPU is slowed down, in words. A power cap alone is how a busy GPU works and no reason."""
    return tuple(
        text_of(f"throttled_gpu.{reason}") if reason in _REASONS else reason
        for reason in gpu.throttled
        if reason != "sw_power_cap"
    )


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
    return tuple(worst_first(found))


def _silent_nodes(nodes: Sequence[NodeStatus], now: float) -> Iterator[Finding]:
    ages = [(node, node_age_s(node, now)) for node in nodes]
    silent = [(node, age) for node, age in ages if age]
    if not silent:
        return
    names = _listed(text_of("silent_node.one", host=node.host, age=duration(age)) for node, age in silent)
    yield finding_of("silent_node", names=names)


def _silent_ranks(nodes: Sequence[NodeStatus], now: float) -> Iterator[Finding]:
    for node in nodes:
        if node_age_s(node, now):
            continue
        silent = [rank for rank in node.ranks if rank.is_silent]
        if silent:
            longest = max(silent, key=lambda rank: rank.silent_s)
            who = text_of("silent_rank.one", rank=longest.rank)
            if len(silent) > 1:
                who = text_of("silent_rank.several", ranks=_listed(str(rank.rank) for rank in silent))
            if len(silent) == len(node.ranks) > 1:
                who = text_of("silent_rank.all", number=len(silent))
            silence = duration(longest.silent_s)
            yield finding_of(
                "silent_rank", who=who, host=node.host, silence=silence, phase=longest.phase,
                where=f"rank {longest.rank}",
            )  # fmt: skip


def _waiting_gpus(status: RunStatus, nodes: Sequence[NodeStatus], now: float) -> Iterator[Finding]:
    waiting = [
        (node, gpu) for node in nodes if not node_age_s(node, now) for gpu in node.gpus if is_waiting_while_busy(gpu)
    ]
    if not waiting:
        return
    longest = max((rank.silent_s for node in nodes for rank in node.ranks), default=status.silent_s or 0.0)
    is_stuck = longest > max(10.0, 3 * (status.step_s or 0.0))
    node, gpu = waiting[0]
    where = f"{node.host}, GPU {gpu.index}"
    busy = text_of(
        "waiting_gpu.busy" if len(waiting) == 1 else "waiting_gpu.several_busy",
        gpus=_gpus(waiting), power=gpu.power_w, limit=gpu.power_limit_w,
    )  # fmt: skip
    if not is_stuck:
        yield finding_of("waiting_gpu", busy=busy, where=where)
        return
    others = [(node, gpu) for node in nodes for gpu in node.gpus if not is_waiting_while_busy(gpu)]
    fix = text_of("stuck_collective.other", gpus=_gpus(others)) if others else text_of("stuck_collective.left")
    yield finding_of("stuck_collective", silence=duration(longest), busy=busy, where=where, fix=fix)


def _throttled_gpus(nodes: Sequence[NodeStatus]) -> Iterator[Finding]:
    found = [(node, gpu, reasons) for node in nodes for gpu in node.gpus if (reasons := throttle_reasons(gpu))]
    for node, gpu, reasons in found[:_MOST]:
        facts: dict[str, Any] = {"index": gpu.index, "host": node.host, "reasons": joined(", ", reasons)}
        where = f"{node.host}, GPU {gpu.index}"
        facts |= {} if gpu.temperature_c is None else {"heat": gpu.temperature_c}
        yield finding_of("throttled_gpu.hot" if "heat" in facts else "throttled_gpu", **facts, where=where)


def _stragglers(nodes: Sequence[NodeStatus]) -> Iterator[Finding]:
    ranks = [(node, rank) for node in nodes for rank in node.ranks]
    slow = slowest([rank for _, rank in ranks])
    if slow is None:
        return
    host = next(node.host for node, rank in ranks if rank is slow)
    works = [work for _, rank in ranks if (work := rank.own_s) is not None]
    own = slow.own_s
    how = text_of("slow_rank.straggles.step", step=slow.step)
    if own and works:
        usual = precise_duration(statistics.median(works))
        how = text_of("slow_rank.straggles.work", own=precise_duration(own), works=usual)
    yield finding_of("slow_rank.straggles", rank=slow.rank, host=host, how=how, where=f"rank {slow.rank}")


def _gpus(found: Sequence[tuple[NodeStatus, GpuSample]]) -> Message:
    """GPU 3 of gpu01; GPUs 0, 1 and 4 more of gpu01; GPU 0 of gpu01, GPU 7 of gpu02."""
    hosts = {node.host for node, _ in found}
    if len(hosts) > 1:
        return _listed(text_of("gpu_named.one", index=gpu.index, host=node.host) for node, gpu in found)
    indices = _listed(str(gpu.index) for _, gpu in found)
    return text_of("gpu_named.several" if len(found) > 1 else "gpu_named.one", index=indices, host=hosts.pop())


def _listed(names: Iterable[str]) -> Message:
    """The first few of many."""
    known = list(names)
    shown = joined(", ", known[:_MOST])
    return text_of("gpu_named.more", names=shown, number=len(known) - _MOST) if known[_MOST:] else shown
