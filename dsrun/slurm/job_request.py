"""What a job asks of each node and of the cluster, in numbers and names."""

import re
from dataclasses import dataclass

from dsrun.errors import UsageError
from dsrun.hardware.gres import GpuGres, parse_gres
from dsrun.slurm.render import notation
from dsrun.slurm.render.options import SlurmSpec
from dsrun.system import hostlist


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """A completed spec in numbers: GPUs and memory (MiB) of each node, time in seconds; None where none is given.

    `resources` are the names of the generic resources it asks for.
    """

    spec: SlurmSpec
    partitions: tuple[str, ...]
    gpus: tuple[GpuGres, ...]
    resources: tuple[str, ...]
    memory: float | None
    time: float | None

    @property
    def gpu_flag(self) -> str:
        return "--gpus-per-node" if self.spec.gpus_per_node else "--gres"


def request(spec: SlurmSpec) -> JobRequest:
    """`spec`, as it is rendered, in numbers."""
    gpus = f"gpu:{spec.gpus_per_node}" if spec.gpus_per_node else spec.gres or ""
    resources = (re.sub(r"^gres[/:]", "", word.strip()) for word in (spec.gres or "").split(","))
    return JobRequest(
        spec=spec,
        partitions=tuple(name for name in (spec.partition or "").split(",") if name),
        gpus=tuple(each for each in parse_gres(gpus) if each.count),
        resources=tuple(dict.fromkeys(re.split("[:=]", word)[0] for word in resources if word)),
        memory=notation.mib(spec.mem) if spec.mem else None,
        time=notation.seconds(spec.time) if spec.time else None,
    )


def feature_names(constraint: str) -> tuple[str, ...]:
    """The features named in --constraint; counts (a*2) and operators left out."""
    return tuple(dict.fromkeys(re.findall(r"[^&|,()\[\]*\s]+", re.sub(r"\*\d+", "", constraint))))


def hosts(text: str | None) -> tuple[str, ...]:
    """The hosts of --nodelist or --exclude."""
    try:
        return hostlist.expand_hosts(text) if text else ()
    except UsageError:  # a file of names: sbatch takes one where there is a slash in it
        return ()
