"""What SLURM says of its nodes, in one query."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from dsrun.errors import MissingError, ToolError
from dsrun.system.capture import ask

_PATIENCE_S = 30  # a busy controller takes several seconds
# Node, features, GRES; -O would cut its columns, %G is never cut.
_FORMAT = "%N|%f|%G"
# What SLURM's programs say where they are installed and no cluster is.
_NO_CLUSTER = "Could not establish a configuration source"


@dataclass(frozen=True, kw_only=True)
class Node:
    """One node: its features and generic resources as its administrator wrote them ("gpu:a100:4(S:0-1)")."""

    name: str
    features: tuple[str, ...]
    gres: str


def cluster_nodes(partition: str | None = None) -> tuple[Node, ...] | None:
    """All nodes of the cluster, or of `partition`, whatever their state; None without sinfo or a cluster.

    Raises ToolError when sinfo fails or does not answer.
    """
    config = os.environ.get("SLURM_CONF")
    if config and not Path(config).exists():  # sinfo would wait a minute for it
        raise ToolError(f"SLURM_CONF names {config}, which does not exist", fix="unset SLURM_CONF, or correct it")
    command = ["sinfo", "--noheader", "--Node", f"--format={_FORMAT}"]
    if partition is not None:
        command.append(f"--partition={partition}")
    try:
        answer = ask(command, seconds=_PATIENCE_S)
    except MissingError:
        return None
    if answer.exit_code != 0 and _NO_CLUSTER in answer.stderr:
        return None
    if answer.exit_code != 0:
        said = (answer.stderr.strip() or answer.stdout.strip() or "no reason given").splitlines()[-1]
        raise ToolError(f"sinfo failed: {said}", fix="is the SLURM controller up? `scontrol ping`")
    return parse_nodes(answer.stdout)


def parse_nodes(text: str) -> tuple[Node, ...]:
    """The lines `name|features|gres` of sinfo; a node of several partitions, which has a line in each, once."""
    nodes: dict[tuple[str, int], Node] = {}
    for number, line in enumerate(text.splitlines()):
        front, _, gres = line.strip().rpartition("|")
        name, _, features = front.partition("|")
        if not gres:
            continue
        node = Node(name=name, features=_words(features), gres=gres)
        nodes.setdefault((name, 0 if name else number), node)
    return tuple(nodes.values())


def _words(features: str) -> tuple[str, ...]:
    return () if features == "(null)" else tuple(word for word in features.split(",") if word)
