"""`dsrun cluster`: nodes, GPUs and partitions of this SLURM cluster."""

from collections.abc import Sequence
from typing import Any

import click

from dsrun.cli.output import evaluated, print_json, print_line, print_table, refusal
from dsrun.datafiles import toml_beside
from dsrun.errors import did_you_mean
from dsrun.slurm.cluster.cluster_facts import NO_LIMIT, ClusterFacts, Partition, SlurmNode
from dsrun.slurm.cluster.discover import discover
from dsrun.slurm.render import notation
from dsrun.system.hostlist import compressed

_TABLE = toml_beside(__file__)
# Characters of a list of nodes in the table; thousands of nodes without a pattern would fill screens.
_LONGEST_NAMES = 40


def show(*, partition: str | None, form: str) -> int:
    facts = discover(with_accounting=False)
    partitions = _chosen(facts, partition)
    wanted = {name for each in partitions for name in each.nodes}
    nodes = [node for node in facts.nodes if partition is None or node.name in wanted]
    if form == "json":
        print_json(as_json(facts, partitions, nodes))
        return 0
    summary = f"cluster {facts.name}, SLURM {facts.version}: {len(nodes)} node{'s' * (len(nodes) != 1)}, "
    gpus = f"{sum(node.gpus_free for node in nodes)} of {sum(node.gpu_count for node in nodes)} GPUs free"
    print_line(summary + f"{gpus}, {sum(node.cores_free for node in nodes)} cores free")
    click.echo()
    print_table(_node_rows(nodes))
    click.echo()
    print_table([[*_TABLE["columns"]], *(_partition_row(facts, each) for each in partitions)])
    return 0


def _chosen(facts: ClusterFacts, name: str | None) -> list[Partition]:
    if name is None:
        return [each for each in facts.partitions if not each.hidden]
    found = facts.partition(name)
    if found is None:
        raise refusal("cluster.partition", name=name, near=did_you_mean(name, (each.name for each in facts.partitions)))
    return [found]


def _node_rows(nodes: Sequence[SlurmNode]) -> list[tuple[str, ...]]:
    """Nodes that are alike in one row, for every kind of GPU."""
    alike: dict[tuple[Any, ...], list[str]] = {}
    for node in nodes:
        for group in node.gpus or (None,):
            cells = evaluated(_TABLE["nodes"], node=node, group=group, gib=notation.gib, map=map)
            alike.setdefault(tuple(cells.values()), []).append(node.name)
    return [("NODES", *_TABLE["nodes"]), *((_names(names), *row) for row, names in alike.items())]


def _names(names: Sequence[str]) -> str:
    """A hostlist, cut where it is long: --format json has all names."""
    text = compressed(names)
    return text if len(text) <= _LONGEST_NAMES else f"{text[: _LONGEST_NAMES - 1]}… ({len(names)} nodes)"


def _partition_row(facts: ClusterFacts, each: Partition) -> list[str]:
    nodes = facts.nodes_of(each)
    names = {"gpus": sum(node.gpu_count for node in nodes), "free": sum(node.gpus_free for node in nodes)}
    limits = evaluated(_TABLE["limits"], each=each, clock=notation.clock, gib=notation.gib, NO_LIMIT=NO_LIMIT)
    shown = "; ".join(f"{name} {value}" for name, value in limits.items() if value)
    columns = evaluated(_TABLE["columns"], each=each, nodes=len(nodes), clock=notation.clock, limits=shown, **names)
    return [*columns.values()]


def as_json(facts: ClusterFacts, partitions: Sequence[Partition], nodes: Sequence[SlurmNode]) -> dict[str, Any]:
    """The cluster as docs/slurm.md describes it: seconds, MiB and GiB; null for no limit and for what is not known."""
    return {
        "name": facts.name,
        "slurm": facts.version,
        "nodes": [_node_json(node) for node in nodes],
        "partitions": [_with_units(each, "hidden", "job_defaults") for each in partitions],
    }


def _node_json(node: SlurmNode) -> dict[str, Any]:
    gpus = [
        {
            **{name: getattr(group, name) for name in ("type", "model", "count", "busy")},
            "capability": ".".join(map(str, group.capability)) if group.capability else None,
            "memory_gib": list(group.memory),
        }
        for group in node.gpus
    ]
    first = {"name": node.name, "state": node.state, "usable": node.is_usable}
    return first | _with_units(node, "resources") | {"gpus": gpus}


def _with_units(source: SlurmNode | Partition, *without: str) -> dict[str, Any]:
    """The fields by their names in the JSON."""
    names = _TABLE["with_units"]
    found = {names.get(name, name): value for name, value in vars(source).items() if name not in without}
    return {name: None if value == NO_LIMIT else value for name, value in found.items()}
