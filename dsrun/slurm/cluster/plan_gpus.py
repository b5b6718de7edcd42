"""`dsrun plan --cluster`: GPUs and host memory of the plan from a SLURM cluster's nodes."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from dsrun.errors import UsageError, did_you_mean
from dsrun.slurm.cluster.cluster_facts import ClusterFacts, GpuGroup, SlurmNode

Kinds = dict[str, list[tuple[SlurmNode, GpuGroup]]]


def with_cluster(given: dict[str, Any], notify: Callable[[str], None]) -> dict[str, Any]:
    """What was given, with --gpus, --gpu-memory and --host-memory filled in from the cluster's nodes.

    Raises UsageError where the cluster has several kinds of GPUs and none is named, for GPUs that it does not have,
    for more nodes than it has of them, and for GPUs whose model SLURM does not know."""
    from dsrun.slurm.cluster.discover import discover

    return with_facts(given, discover(with_accounting=False), notify)


def with_facts(given: dict[str, Any], facts: ClusterFacts, notify: Callable[[str], None]) -> dict[str, Any]:
    """As `with_cluster`, for a cluster whose facts are known."""
    nodes: Sequence[SlurmNode] = facts.nodes
    where = f"cluster {facts.name}"
    if given["partition"] is not None:
        partition = facts.partition(given["partition"])
        if partition is None:
            fix = did_you_mean(given["partition"], (each.name for each in facts.partitions))
            raise UsageError(f"there is no partition {given['partition']!r}", fix=fix)
        nodes, where = facts.nodes_of(partition), f"partition {partition.name}"
    found = _chosen(kinds(nodes), given["gpus"], where)
    return {**given, **_filled(found, given, where, notify)}


def kinds(nodes: Sequence[SlurmNode]) -> Kinds:
    """The nodes by the names of their GPUs; a node with two kinds is listed under both."""
    found: Kinds = {}
    for node in nodes:
        for group in node.gpus:
            found.setdefault(group.name, []).append((node, group))
    return found


def _chosen(found: Kinds, gpus: str | None, where: str) -> list[tuple[SlurmNode, GpuGroup]]:
    if not found:
        raise UsageError(f"{where} has no GPUs", fix="name GPUs: --gpus a100-80:8")
    listed = ", ".join(f"{name} ({_nodes(pairs)})" for name, pairs in found.items())
    if gpus is not None:
        for name, pairs in found.items():
            if name.lower() == gpus.partition(":")[0].lower():
                return pairs
        raise UsageError(f"{where} has no GPUs called {gpus}", fix=f"it has {listed}")
    if len(found) > 1:
        raise UsageError(
            f"{where} has GPUs of {len(found)} kinds: {listed}", fix=f"choose one: --gpus {next(iter(found))}"
        )
    return next(iter(found.values()))


def _nodes(pairs: list[tuple[SlurmNode, GpuGroup]]) -> str:
    counts = Counter(group.count for _, group in pairs)
    return ", ".join(f"{number} node{'s' if number > 1 else ''} with {count}" for count, number in counts.items())


def _filled(
    pairs: list[tuple[SlurmNode, GpuGroup]], given: dict[str, Any], where: str, notify: Callable[[str], None]
) -> dict[str, Any]:
    """Flags for the number of GPUs that most nodes have (of equals the larger), among those that enough nodes have."""
    from dsrun.hardware.gpu_facts import lookup

    counts = Counter(group.count for _, group in pairs)
    for per_node in sorted(counts, key=lambda count: (counts[count], count), reverse=True):
        alike = [(node, group) for node, group in pairs if group.count >= per_node]
        if len(alike) >= given["nodes"]:
            break
    else:
        has = f"{where} has {_nodes(pairs)} {pairs[0][1].name}"
        raise UsageError(f"{has}, but --nodes is {given['nodes']}", fix=f"--nodes {len(pairs)}")
    group = alike[0][1]
    name = next((each for each in (group.type, group.model) if each and lookup(each)), group.name)
    memory = given["gpu_memory"] or (float(group.memory[0]) if len(group.memory) == 1 else None)
    if lookup(name) is None and memory is None:
        raise UsageError(
            f"SLURM does not name the GPU model of {alike[0][0].name} ({group.name})", fix="name them: --gpus a100-80:8"
        )
    host = given["host_memory"] or min(node.memory for node, _ in alike) / 1024
    notify(f"{where}: {_nodes(pairs)} {group.name}; planned for {given['nodes']} with {per_node} each")
    return {"gpus": f"{name}:{per_node}", "gpu_memory": memory, "host_memory": host}
