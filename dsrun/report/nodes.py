"""What the nodes of a run last told of its ranks and GPUs, as tables; their columns are in nodes.toml."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dsrun.datafiles import evaluate, toml_beside
from dsrun.monitoring.observations import is_waiting_while_busy, slowest, throttle_reasons, wait_share
from dsrun.runs.node_status import NodeStatus
from dsrun.system.terminal.display import precise_duration, size_text

MOST_ROWS = 16
"""Of more ranks those are shown that are behind or work the longest, of more GPUs those that are used least."""
_PlacedNode = tuple[NodeStatus, Any]
"""A rank or a GPU with its node."""


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
        behind = sorted(ranks, key=lambda each: (each[1].step, -(each[1].own_s or 0.0)))
        names = {"slow": slowest([rank for _, rank in ranks])}
        tables.append(_table("ranks", f"slowest of {len(ranks):,}", when, behind, lambda each: each[1].rank, **names))
    if gpus:
        idle = sorted(gpus, key=lambda each: 1.0 if each[1].utilization is None else each[1].utilization)
        tables.append(
            _table("GPUs", f"least used of {len(gpus):,}", when, idle, lambda each: (each[0].node, each[1].index))
        )
    return tables


def _table(
    kind: str, which: str, when: str, several: Sequence[_PlacedNode], order: Callable[[_PlacedNode], Any], **names: Any
) -> NodeTable:
    """The first of `several`, in this order."""
    shown = sorted(several[:MOST_ROWS], key=order)
    of = f"The {len(shown)} {which} {kind}" if len(several) > len(shown) else kind[0].upper() + kind[1:]
    cells = {
        head: [str(evaluate(cell, {"node": node, "each": each, **_FUNCTIONS, **names})) for node, each in shown]
        for head, cell in toml_beside(__file__)[kind].items()
    }
    heads = tuple(head for head, column in cells.items() if any(column))
    return NodeTable(f"{of} at {when}", heads, tuple(zip(*(cells[head] for head in heads), strict=True)))


_SHOWN = (precise_duration, size_text, wait_share, is_waiting_while_busy, throttle_reasons)
_FUNCTIONS = {each.__name__: each for each in _SHOWN}
