"""The GPUs of one node by kind: how many, how many busy, and what is known about the kind."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dsrun.hardware.gpus import GpuModel, gpu_table, lookup
from dsrun.hardware.gres import Gres, parse_gres

# A MIG slice by its profile, 3g.20gb: the number before "gb" is its memory.
_SLICE = re.compile(r"(?:^|[_.:-])\d+g\.(\d+)gb", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class GpuGroup:
    """GPUs of one type on one node; `type` as GRES spells it, None where it is untyped.

    `model` is the GPU's name, `capability` its compute capability and `memory` the GiB of one, several where the name
    fits several products. They are None and () where neither the type nor the node's features tell.
    """

    type: str | None
    count: int
    busy: int
    model: str | None
    capability: tuple[int, int] | None
    memory: tuple[int, ...]

    @property
    def name(self) -> str:
        """How to call it: its type, else the model that a feature of the node names, else "gpu"."""
        return self.type or self.model or "gpu"


def gpu_groups(gres: str, used: str, features: tuple[str, ...] = ()) -> tuple[GpuGroup, ...]:
    """The GPUs of a node from its Gres and GresUsed in `scontrol --details show node`."""
    busy: dict[str | None, int] = {}
    for each in parse_gres(used):
        busy[each.type] = busy.get(each.type, 0) + each.count
    kinds = [each for each in parse_gres(gres) if each.count]
    if len(kinds) == 1 and kinds[0].type not in busy:  # GresUsed without types
        busy = {kinds[0].type: sum(busy.values())}
    # What a feature says of a node with several kinds may be meant for any of them.
    alike = len([each for each in kinds if not _SLICE.search(each.type or "")]) <= 1
    featured = _featured(features) if alike else None
    return tuple(_group(each, busy.get(each.type, 0), featured) for each in kinds)


def _group(gres: Gres, busy: int, featured: GpuModel | None) -> GpuGroup:
    """What the type says; an untyped GPU, or one with a type of the site's own, may be named by a feature."""
    sliced = _SLICE.search(gres.type or "")
    model = lookup((gres.type or "")[: sliced.start() if sliced else None]) or featured
    memory: tuple[int, ...] = (int(sliced[1]),) if sliced else memory_choices(model) if model else ()
    return GpuGroup(
        type=gres.type,
        count=gres.count,
        busy=min(busy, gres.count),
        model=model.name if model else None,
        capability=model.capability if model else None,
        memory=memory,
    )


def _featured(features: tuple[str, ...]) -> GpuModel | None:
    """The one GPU that the features name; None for none and for several."""
    found = {model.name: model for name in features if (model := lookup(name))}
    return next(iter(found.values())) if len(found) == 1 else None


def memory_choices(model: GpuModel) -> tuple[int, ...]:
    """GiB of memory of every product that a name may mean, the smallest first; custom parts are left out."""
    if model.memory_gib is not None:
        return (model.memory_gib,)
    rows = [row for row in gpu_table() if f"{row.name} ".startswith(f"{model.name} ")]
    sizes = {row.memory_gib for row in rows if row.memory_gib and row.confidence != "C"}
    return tuple(sorted(sizes))
