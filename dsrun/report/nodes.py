"""What the nodes of a run last told of its ranks and GPUs, as tables."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dsrun.machine.gpu_samples import GpuSample
from dsrun.monitoring.observations import is_waiting_while_busy, slowest, throttle_reasons, wait_share
from dsrun.runs.node_status import NodeStatus, RankProgress
from dsrun.system.terminal.display import precise_duration, size_text

MOST_ROWS = 16
"""Of more ranks those are shown that are behind or work the longest, of more GPUs those that are used least."""
_GIB = 1 << 30
PlacedRank = tuple[NodeStatus, RankProgress]
PlacedGpu = tuple[NodeStatus, GpuSample]
Each = TypeVar("Each")


@dataclass(frozen=True)
class NodeTable:
    """A table without the columns that are empty in all its rows."""

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def node_tables(nodes: Sequence[NodeStatus]) -> list[NodeTable]:
    """The ranks, where their steps are known, and the GPUs."""
    ranks = [(node, rank) for node in nodes for rank in node.ranks]
    gpus = [(node, gpu) for node in nodes for gpu in node.gpus]
    when = max((node.time for node in nodes), default="")[:19].replace("T", " ")
    tables = []
    if any(rank.step_s is not None for _, rank in ranks):
        tables.append(_rank_table(ranks, when))
    if gpus:
        tables.append(_gpu_table(gpus, when))
    return tables


def _rank_table(ranks: list[PlacedRank], when: str) -> NodeTable:
    slow = slowest([rank for _, rank in ranks])
    shown = sorted(ranks, key=lambda each: (each[1].step, -(each[1].own_s or 0.0)))[:MOST_ROWS]
    columns: Mapping[str, Callable[[PlacedRank], str]] = {
        "rank": lambda each: str(each[1].rank),
        "host": lambda each: each[0].host,
        "phase": lambda each: each[1].phase,
        "step": lambda each: f"{each[1].step:,}",
        "step time": lambda each: _time(each[1].step_s),
        "for data": lambda each: _time(each[1].data_s),
        "own work": lambda each: _time(each[1].own_s),
        "waits": lambda each: _percent(wait_share(each[1])),
        "": lambda each: "slowest" if each[1] is slow else "",
    }
    shown.sort(key=lambda each: each[1].rank)
    of = f"The {len(shown)} slowest of {len(ranks):,} ranks" if len(ranks) > len(shown) else "Ranks"
    return _table(f"{of} at {when}", columns, shown)


def _gpu_table(gpus: list[PlacedGpu], when: str) -> NodeTable:
    shown = sorted(gpus, key=lambda each: 1.0 if each[1].utilization is None else each[1].utilization)[:MOST_ROWS]
    columns: Mapping[str, Callable[[PlacedGpu], str]] = {
        "GPU": lambda each: f"{each[0].host}, {each[1].index}",
        "name": lambda each: each[1].name.removeprefix("NVIDIA "),
        "use": lambda each: _percent(each[1].utilization),
        "memory": lambda each: _memory(each[1]),
        "power": lambda each: _power(each[1]),
        "temperature": lambda each: "" if each[1].temperature_c is None else f"{each[1].temperature_c} °C",
        "": lambda each: _note(each[1]),
    }
    shown.sort(key=lambda each: (each[0].node, each[1].index))
    of = f"The {len(shown)} least used of {len(gpus):,} GPUs" if len(gpus) > len(shown) else "GPUs"
    return _table(f"{of} at {when}", columns, shown)


def _table(caption: str, columns: Mapping[str, Callable[[Each], str]], shown: Sequence[Each]) -> NodeTable:
    cells = {head: [cell(each) for each in shown] for head, cell in columns.items()}
    heads = tuple(head for head, column in cells.items() if any(column))
    return NodeTable(caption, heads, tuple(zip(*(cells[head] for head in heads), strict=True)))


def _time(seconds: float | None) -> str:
    return "" if seconds is None else precise_duration(seconds)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def _memory(gpu: GpuSample) -> str:
    if gpu.memory_used is None:
        return ""
    return size_text(gpu.memory_used) + (f" of {gpu.memory_total / _GIB:.0f}" if gpu.memory_total else "")


def _power(gpu: GpuSample) -> str:
    if gpu.power_w is None:
        return ""
    return f"{gpu.power_w:.0f}{f' of {gpu.power_limit_w:.0f}' if gpu.power_limit_w else ''} W"


def _note(gpu: GpuSample) -> str:
    return "busy at low power" if is_waiting_while_busy(gpu) else ", ".join(throttle_reasons(gpu))
