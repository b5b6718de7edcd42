"""`dsrun cluster`: nodes, GPUs and partitions of this SLURM cluster."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from dsrun.slurm.cluster.facts import ClusterFacts, GpuGroup, Node, Partition

FORMAT_VERSION = 1
INFINITE = float("inf")


@click.command(name="cluster", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--partition", metavar="NAME", help="Only this partition and its nodes.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--debug", is_flag=True, hidden=True)
def command(*, partition: str | None, form: str, debug: bool) -> int:
    """Nodes, GPUs with memory and compute capability, what is free, and the partitions with their limits."""
    del debug  # main() looks for it
    from dsrun.slurm.cluster.discover import discover

    facts = discover(with_accounting=False)
    partitions = _chosen(facts, partition)
    wanted = {name for each in partitions for name in each.nodes}
    nodes = [node for node in facts.nodes if partition is None or node.name in wanted]
    if form == "json":
        click.echo(json.dumps(as_json(facts, partitions, nodes), indent=2))
        return 0
    head = f"cluster {facts.name}, SLURM {facts.version}: {_count(len(nodes), 'node')}, "
    click.echo(head + f"{_gpus_free(nodes)}, {sum(node.cores_free for node in nodes)} cores free")
    click.echo()
    _table(
        [
            ("NODES", "STATE", "GPUS", "MEMORY", "CAPABILITY", "FREE", "CORES FREE", "HOST MEMORY"),
            *_node_rows(nodes),
        ]
    )
    click.echo()
    _table(
        [
            ("PARTITION", "STATE", "TIME LIMIT", "NODES", "GPUS FREE", "LIMITS"),
            *_partition_rows(facts, partitions),
        ]
    )
    return 0


def _chosen(facts: ClusterFacts, name: str | None) -> list[Partition]:
    if name is None:
        return [each for each in facts.partitions if not each.hidden]
    found = facts.partition(name)
    if found is None:
        from dsrun.errors import UsageError
        from dsrun.findings import nearest

        raise UsageError(f"there is no partition {name!r}", fix=nearest(name, (each.name for each in facts.partitions)))
    return [found]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _gpus_free(nodes: Sequence[Node]) -> str:
    return f"{sum(node.gpus_free for node in nodes)} of {sum(node.gpu_count for node in nodes)} GPUs free"


def _table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _node_rows(nodes: Sequence[Node]) -> list[tuple[str, ...]]:
    """Nodes that are alike in one row, for every kind of GPU."""
    from dsrun.slurm.render import notation
    from dsrun.system.hostlist import compressed

    alike: dict[tuple[Any, ...], list[str]] = {}
    for node in nodes:
        for group in node.gpus or (None,):
            free = (group.count - group.busy if node.is_usable else 0) if group else None
            shown = (
                _state(node), f"{group.count} {group.name}" if group else "-", _memory(group),
                _capability(group), "-" if free is None else str(free), f"{node.cores_free} of {node.cores}",
                notation.gib(node.memory),
            )  # fmt: skip
            alike.setdefault(shown, []).append(node.name)
    return [(compressed(names), *row) for row, names in alike.items()]


def _state(node: Node) -> str:
    """SLURM's word, without its own plans for the node, and why the node takes no jobs."""
    why = f" ({node.reason})" if node.reason and not node.is_usable else ""
    return node.state.lower().replace("+planned", "") + why


def _memory(group: GpuGroup | None) -> str:
    if group is None:
        return "-"
    return " or ".join(map(str, group.memory)) + " GiB" if group.memory else "?"


def _capability(group: GpuGroup | None) -> str:
    if group is None:
        return "-"
    return ".".join(map(str, group.capability)) if group.capability else "?"


def _partition_rows(facts: ClusterFacts, partitions: Sequence[Partition]) -> list[tuple[str, ...]]:
    from dsrun.slurm.render import notation

    rows: list[tuple[str, ...]] = []
    for each in partitions:
        nodes = facts.nodes_of(each)
        gpus, free = sum(node.gpu_count for node in nodes), sum(node.gpus_free for node in nodes)
        rows.append(
            (
                each.name + ("*" if each.default else ""), each.state.lower(), notation.clock(each.time_limit),
                str(len(nodes)), f"{free} of {gpus}" if gpus else "-", _limits(each),
            )
        )  # fmt: skip
    return rows


def _limits(each: Partition) -> str:
    from dsrun.slurm.render import notation

    said = {
        "default time": notation.clock(each.time_default) if each.time_default else "",
        "nodes": f"at most {each.max_nodes:.0f}" if each.max_nodes != INFINITE else "",
        "cores a node": f"at most {each.max_cpus_per_node:.0f}" if each.max_cpus_per_node != INFINITE else "",
        "memory a node": f"at most {notation.gib(each.max_memory_per_node)}"
        if each.max_memory_per_node != INFINITE
        else "",
        "accounts": " ".join((*each.accounts, *(f"not {name}" for name in each.denied_accounts))),
        "qos": " ".join((*each.qos, *(f"not {name}" for name in each.denied_qos))),
        "groups": " ".join(each.groups),
    }
    return "; ".join(f"{name} {value}" for name, value in said.items() if value)


def as_json(facts: ClusterFacts, partitions: Sequence[Partition], nodes: Sequence[Node]) -> dict[str, Any]:
    """The cluster as docs/slurm.md describes it: seconds, MiB and GiB; null for no limit and for what is not known."""
    return {
        "version": FORMAT_VERSION,
        "name": facts.name,
        "slurm": facts.version,
        "nodes": [_node_json(node) for node in nodes],
        "partitions": [_partition_json(each) for each in partitions],
    }


def _node_json(node: Node) -> dict[str, Any]:
    return {
        "name": node.name,
        "state": node.state,
        "usable": node.is_usable,
        "reason": node.reason,
        "partitions": list(node.partitions),
        "features": list(node.features),
        "gpus": [
            {
                "type": group.type,
                "model": group.model,
                "count": group.count,
                "busy": group.busy,
                "capability": ".".join(map(str, group.capability)) if group.capability else None,
                "memory_gib": list(group.memory),
            }
            for group in node.gpus
        ],
        "cores": node.cores,
        "cores_busy": node.cores_busy,
        "memory_mib": node.memory,
        "memory_busy_mib": node.memory_busy,
    }


def _partition_json(each: Partition) -> dict[str, Any]:
    return {
        "name": each.name,
        "state": each.state,
        "default": each.default,
        "nodes": list(each.nodes),
        "time_limit_s": _finite(each.time_limit),
        "time_default_s": each.time_default,
        "min_nodes": each.min_nodes,
        "max_nodes": _finite(each.max_nodes),
        "max_cores_per_node": _finite(each.max_cpus_per_node),
        "max_memory_per_node_mib": _finite(each.max_memory_per_node),
        "accounts": list(each.accounts),
        "denied_accounts": list(each.denied_accounts),
        "qos": list(each.qos),
        "denied_qos": list(each.denied_qos),
        "groups": list(each.groups),
        "preempt_mode": each.preempt_mode,
    }


def _finite(number: float) -> float | None:
    return None if number == INFINITE else number
