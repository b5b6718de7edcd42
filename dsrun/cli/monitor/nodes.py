"""The tables of GPUs, hosts and ranks; of many only what a person has to look at."""

import statistics
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from dsrun.cli.monitor.section import EMPTY, MonitorSection, MonitorSnapshot, TerminalSize, headed, texts
from dsrun.machine.gpu_samples import GpuSample
from dsrun.monitoring.observations import (
    is_waiting_while_busy,
    node_age_s,
    silence_s,
    slowest,
    throttle_reasons,
    wait_share,
)  # fmt: skip
from dsrun.monitoring.plots import bar
from dsrun.runs.node_status import NodeStatus, RankProgress
from dsrun.system.terminal.display import printable

MANY = 16
"""Of more GPUs or ranks, a summary and the conspicuous ones are shown."""
_CONSPICUOUS = 3
_GIB = 1 << 30


def gpu_section(snapshot: MonitorSnapshot, room: TerminalSize, *, most: int) -> MonitorSection:
    """Use, memory, power and temperature of each GPU."""
    gpus = [(node, gpu) for node in snapshot.nodes for gpu in node.gpus]
    most -= 1 if room.is_low else 2
    if not gpus or most < 1:
        return EMPTY
    names = sorted({gpu.name.removeprefix("NVIDIA ") for _, gpu in gpus})
    note = f"{len(gpus)} × {printable(names[0])}" if len(names) == 1 else f"{len(gpus)}"
    shown = gpus
    if len(gpus) > min(MANY, most):
        note += f", {_gpu_summary([gpu for _, gpu in gpus])}"
        shown = sorted(gpus, key=lambda each: _conspicuous(each[1]))[: min(_CONSPICUOUS, most)]
    grid = Table.grid(padding=(0, 2))
    for _ in range(6):
        grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    facts = {"several": len(snapshot.nodes) > 1, "wide": room.width >= 90, "ascii_only": room.ascii_only}
    for node, gpu in shown:
        grid.add_row(*texts("gpu", node=node, gpu=gpu, **facts, **_FUNCTIONS).values())
    return headed(room, "GPUs", note, grid, len(shown))


def _gpu_summary(gpus: Sequence[GpuSample]) -> str:
    use = [gpu.utilization for gpu in gpus if gpu.utilization is not None]
    heat = [gpu.temperature_c for gpu in gpus if gpu.temperature_c is not None]
    power = [gpu.power_w for gpu in gpus if gpu.power_w is not None]
    used, total = ([getattr(gpu, name) or 0 for gpu in gpus] for name in ("memory_used", "memory_total"))
    parts = [
        f"{statistics.fmean(use):.0%} busy ({min(use):.0%} to {max(use):.0%})" if use else "",
        _share(max(used), max(total)) + " at most" if any(total) else "",
        f"{sum(power) / 1000:.1f} kW" if power else "",
        f"{max(heat)} °C at most" if heat else "",
    ]
    return ", ".join(part for part in parts if part)


def _conspicuous(gpu: GpuSample) -> tuple[bool, bool, float]:
    return (
        not is_waiting_while_busy(gpu),
        not throttle_reasons(gpu),
        1.0 if gpu.utilization is None else gpu.utilization,
    )


def host_section(snapshot: MonitorSnapshot, room: TerminalSize, *, most: int) -> MonitorSection:
    """Load and memory of each host, the busiest of many."""
    known = [node for node in snapshot.nodes if node.cpu is not None or node.memory_total]
    if not known or most < (2 if room.is_low else 3):
        return EMPTY
    shown = sorted(known, key=lambda node: -(node.memory_used or 0) / (node.memory_total or 1))[:_CONSPICUOUS]
    shown.sort(key=lambda node: node.node)
    hosts = Text("   ").join(Text.assemble(*texts("host", node=node, share=_share).values()) for node in shown)
    hosts.no_wrap, hosts.overflow = True, "ellipsis"
    more = f"{len(known)} nodes, those with the least free memory" if len(known) > len(shown) else ""
    return headed(room, "host" if len(known) == 1 else "hosts", more, hosts, 1)


def rank_section(snapshot: MonitorSnapshot, room: TerminalSize, *, most: int) -> MonitorSection:
    """Step, phase, times and last heartbeat of each rank, the slowest marked."""
    ranks = [(node, rank) for node in snapshot.nodes for rank in node.ranks]
    most -= 2 if room.is_low else 3
    if not ranks or most < 1:
        return EMPTY
    slow = slowest([rank for _, rank in ranks])
    note, shown = f"{len(ranks)}", ranks
    if len(ranks) > min(MANY, most):
        note += f", {_rank_summary(ranks, snapshot.now)}"
        shown = _conspicuous_ranks(ranks, snapshot.now)[: min(2 * _CONSPICUOUS, most)]
    grid = Table.grid(padding=(0, 2))
    names = {
        "several": len(snapshot.nodes) > 1, "ascii_only": room.ascii_only,
        # Ranks of other programs send no heartbeats.
        "beats": any(rank.phase != "running" for _, rank in shown),
    }  # fmt: skip
    rows = []
    for node, rank in shown:
        times = {"silent": silence_s(rank, node, snapshot.now), "waits": wait_share(rank), "is_slow": rank is slow}
        rows.append(texts("rank", node=node, rank=rank, **times, **names))
    keep = [name for name in rows[0] if name in ("rank", "phase", "") or any(row[name] for row in rows)]
    for name in keep:
        grid.add_column(no_wrap=True, justify="left" if name in ("node", "phase", "") else "right")
    grid.add_row(*(Text(name, style="dim") for name in keep))
    for row in rows:
        grid.add_row(*(row[name] for name in keep))
    return headed(room, "ranks", note, grid, len(shown) + 1)


def _rank_summary(ranks: Sequence[tuple[NodeStatus, RankProgress]], now: float) -> str:
    phases = [rank.phase for _, rank in ranks]
    steps = [rank.step for _, rank in ranks]
    counted = ", ".join(f"{phases.count(phase)} {printable(phase)}" for phase in dict.fromkeys(phases))
    at = f"step {min(steps):,}" if min(steps) == max(steps) else f"steps {min(steps):,} to {max(steps):,}"
    stale = sum(1 for node in {id(node): node for node, _ in ranks}.values() if node_age_s(node, now))
    news = f", {stale} nodes without news" if stale else ""
    return f"{counted}, at {at}{news}; the slowest and the most silent:"


def _conspicuous_ranks(
    ranks: Sequence[tuple[NodeStatus, RankProgress]], now: float
) -> list[tuple[NodeStatus, RankProgress]]:
    """The slowest few and the most silent few."""
    slow = sorted(ranks, key=lambda each: (each[1].step, -(each[1].own_s or 0.0)))[:_CONSPICUOUS]
    silent = sorted(ranks, key=lambda each: -silence_s(each[1], each[0], now))[:_CONSPICUOUS]
    return list({rank.rank: (node, rank) for node, rank in (*slow, *silent)}.values())


def _share(used: int | None, total: int | None) -> str:
    if used is None:
        return ""
    return f"{used / _GIB:.1f}" + (f"/{total / _GIB:.0f} GiB" if total else " GiB")


_FUNCTIONS = {each.__name__: each for each in (bar, is_waiting_while_busy, throttle_reasons)} | {"share": _share}
