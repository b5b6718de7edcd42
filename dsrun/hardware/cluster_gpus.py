"""The nodes of this SLURM cluster and their GPUs, as sinfo lists them."""

import re
from dataclasses import dataclass

from dsrun.errors import MissingError, UsageError
from dsrun.hardware.gres import GpuGres, parse_gres
from dsrun.system.slurm import run_tool

# Node, features, GRES; -O would cut its columns, %G is never cut.
_FORMAT = "%N|%f|%G"


@dataclass(frozen=True, kw_only=True)
class ClusterNode:
    """One node: its features and generic resources as its administrator wrote them ("gpu:a100:4(S:0-1)")."""

    name: str
    features: tuple[str, ...]
    gres: str


def cluster_nodes(partition: str | None = None) -> tuple[ClusterNode, ...] | None:
    """All nodes of the cluster, or of `partition`, whatever their state; None without sinfo or a cluster.

    Raises ToolError when sinfo fails or does not answer."""
    command = ["sinfo", "--noheader", "--Node", f"--format={_FORMAT}"]
    try:
        text = run_tool(command if partition is None else [*command, f"--partition={partition}"])
    except MissingError:
        return None
    nodes: dict[str, ClusterNode] = {}  # a node of several partitions has a line in each
    for name, features, gres in re.findall(r"(?m)^([^|\n]+)\|(.*)\|(\S+)", text):
        words = () if features == "(null)" else tuple(word for word in features.split(",") if word)
        nodes[name] = ClusterNode(name=name, features=words, gres=gres)
    return tuple(nodes.values())


def cluster_gpus(partition: str | None = None) -> tuple[GpuGres, ...] | None:
    """The GPUs of all nodes of this SLURM cluster, or of one partition, summed by type; None without SLURM.

    Nodes that are down or drained count: the wheel is for when they are back. Raises ToolError when SLURM does
    not answer and UsageError for a partition without nodes."""
    nodes = cluster_nodes(partition)
    if nodes is None:
        return None
    if partition is not None and not nodes:
        raise UsageError(f"SLURM has no nodes in a partition {partition!r}", fix="sinfo -s lists the partitions")
    sums: dict[str | None, GpuGres] = {}
    for gpus in (each for node in nodes for each in parse_gres(node.gres) if each.count):
        before = sums.get(gpus.type)
        count = gpus.count + (before.count if before else 0)
        sums[gpus.type] = GpuGres(type=gpus.type, count=count, capability=gpus.capability)
    return tuple(sums.values())
