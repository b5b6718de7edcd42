"""What a SlurmSpec comes to in numbers, for comparing it with a cluster."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dsrun.errors import UsageError
from dsrun.findings import Finding
from dsrun.hardware.gres import Gres, parse_gres
from dsrun.slurm.render import notation
from dsrun.slurm.render.options import SlurmSpec


@dataclass(frozen=True, kw_only=True)
class Request:
    """A job's wishes: `gpus`, `cores` and `memory` (MiB) of each node, `time` and `lead` in seconds.

    None: not asked for, or all there is. `gpu_flag` is where the GPUs were asked for; `resources` are the names of
    the generic resources it asks for.
    """

    partitions: tuple[str, ...]
    nodes: int
    gpus: tuple[Gres, ...]
    gpu_flag: str
    resources: tuple[str, ...]
    cores: int | None
    memory: float | None
    all_memory: bool
    time: float | None
    lead: int | None
    workers: int
    constraint: str
    nodelist: str | None
    exclude: str | None
    account: str | None
    qos: str | None
    reservation: str | None
    licenses: str | None
    highest_array_index: int | None

    @property
    def gpu_count(self) -> int:
        """GPUs of each node, of all types."""
        return sum(each.count for each in self.gpus)


def request(spec: SlurmSpec) -> Request:
    """`spec` in numbers. It is the spec as it is rendered, its GPUs and cores filled in."""
    gpus = _gpus(spec)
    memory = notation.mib(spec.mem) if spec.mem else None
    return Request(
        partitions=tuple(name for name in (spec.partition or "").split(",") if name),
        nodes=spec.nodes,
        gpus=gpus,
        gpu_flag="--gpus-per-node" if spec.gpus_per_node else "--gres",
        resources=_resources(spec.gres or ""),
        cores=spec.cpus_per_task,
        memory=memory or None,
        all_memory=memory == 0 or spec.exclusive,
        time=notation.seconds(spec.time) if spec.time else None,
        lead=spec.signal_lead,
        workers=spec.nproc or sum(each.count for each in gpus) or 1,
        constraint=spec.constraint or "",
        nodelist=spec.nodelist,
        exclude=spec.exclude,
        account=spec.account,
        qos=spec.qos,
        reservation=spec.reservation,
        licenses=spec.licenses,
        highest_array_index=_highest(spec.array),
    )


def _gpus(spec: SlurmSpec) -> tuple[Gres, ...]:
    """The GPUs of --gres or --gpus-per-node; what cannot be read was refused when the spec was made."""
    text = f"gpu:{spec.gpus_per_node}" if spec.gpus_per_node else spec.gres or ""
    try:
        return tuple(each for each in parse_gres(text) if each.count)
    except UsageError:
        return ()


def _resources(gres: str) -> tuple[str, ...]:
    words = (re.sub(r"^gres[/:]", "", word.strip()).split(":")[0].split("=")[0] for word in gres.split(","))
    return tuple(dict.fromkeys(word for word in words if word))


def _highest(array: str | None) -> int | None:
    """The highest number of "0-9,20%4", None without an array."""
    numbers = [int(number) for number in re.findall(r"\d+", re.sub(r"[:%]\d+", "", array or ""))]
    return max(numbers, default=None)


def error(code: str, message: str, *, fix: str, where: str) -> Finding:
    """A finding that no job survives."""
    return Finding(level="error", code=f"slurm_{code}", message=message, fix=fix, where=where)
