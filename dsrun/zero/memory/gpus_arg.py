"""`--gpus a100-80:8`: which GPU, how many per node, with how much memory."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace

from dsrun.errors import UsageError
from dsrun.hardware.gpus import GpuModel, gpu_table, lookup

MOST_GPUS = 1024
"""Per node; no machine has more in one."""
MOST_NODES = 100_000
LINKED = frozenset({(7, 0), (8, 0), (9, 0), (10, 0), (10, 3)})
"""Compute capabilities of V100, A100, H100, B200 and B300."""
_FORM = re.compile(r"^(?P<name>.*?)(?::(?P<count>-?\d+))?$")


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """GPUs of one kind: `per_node` on each of `nodes`, with `memory` GiB each; `name` as the user wrote it.

    `note` says what was assumed of a name that fits GPUs of different memory.
    """

    name: str
    model: GpuModel
    per_node: int
    nodes: int
    memory: float
    note: str = ""

    @property
    def world(self) -> int:
        return self.per_node * self.nodes

    def with_nodes(self, nodes: int, per_node: int | None = None) -> Cluster:
        """The same GPUs, more or fewer of them."""
        return replace(self, nodes=nodes, per_node=per_node or self.per_node)

    @property
    def has_nvlink(self) -> bool:
        """Whether the GPUs of a node are taken to be linked: datacenter boards with HBM that are no PCIe cards."""
        model = self.model
        return (
            model.segment == "datacenter"
            and model.capability in LINKED
            and not any(word in f"{model.name} {self.name}".lower() for word in ("pcie", "nvl"))
        )


def cluster(text: str, *, nodes: int = 1, memory: float | None = None) -> Cluster:
    """What `--gpus NAME[:COUNT] --nodes N --gpu-memory GIB` describe; one GPU without a count.

    Raises UsageError for counts that make no cluster, and for a GPU whose memory is neither known nor given.
    """
    match = _FORM.match(text.strip())
    name, count = (match["name"].strip(), match["count"]) if match else ("", None)
    per_node = int(count) if count is not None else 1
    if not name:
        raise UsageError(f"--gpus {text!r} names no GPU", fix="write it as a100-80:8")
    if not 1 <= per_node <= MOST_GPUS:
        raise UsageError(f"--gpus {text}: {per_node} GPUs in a node", fix=f"give 1 to {MOST_GPUS}")
    if not 1 <= nodes <= MOST_NODES:
        raise UsageError(f"--nodes {nodes} is no number of nodes", fix=f"give 1 to {MOST_NODES:,}")
    if memory is not None and not 1 <= memory <= 10_000:
        raise UsageError(f"--gpu-memory {memory:g} GiB is no GPU's memory", fix="give GiB, such as 48")
    model = lookup(name)
    if model is None:
        if memory is None:
            raise UsageError(f"--gpus {text}: no GPU called {name!r} is known", fix="add --gpu-memory GIB")
        model = GpuModel(name=name, capability=(0, 0), memory_gib=round(memory))
    known, note = (memory, "") if memory is not None else _memory(name, model)
    if known is None:
        raise UsageError(
            f"--gpus {text}: how much memory {model.name} has is not known", fix="add --gpu-memory GIB"
        )
    return Cluster(
        name=name, model=replace(model, memory_gib=round(known)), per_node=per_node, nodes=nodes,
        memory=float(known), note=note,
    )  # fmt: skip


def _memory(name: str, model: GpuModel) -> tuple[float | None, str]:
    """The GPU's memory in GiB; of several that a name fits the most common one, and of equals the smallest."""
    if model.memory_gib is not None:
        return model.memory_gib, ""
    rows = [row for row in gpu_table() if row.memory_gib and f"{row.name} ".startswith(f"{model.name} ")]
    sizes = Counter(row.memory_gib for row in rows if row.confidence != "C" and row.memory_gib)
    if not sizes:
        return None, ""
    chosen = min(sizes, key=lambda each: (-sizes[each], each))
    others = " or ".join(str(each) for each in sorted(sizes) if each != chosen)
    return (
        chosen,
        f"{name} is taken to be the one with {chosen} GiB; there are some with {others} GiB (--gpu-memory)",
    )
