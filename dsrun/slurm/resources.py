"""What a job asks of each node, in numbers and names, and whether a partition has such nodes: GPUs, cores, memory and
features."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dsrun.errors import UsageError
from dsrun.findings.finding import Finding, finding_of, text_of
from dsrun.hardware.gres import GpuGres, parse_gres
from dsrun.messages import Message, joined, suggestion
from dsrun.slurm.cluster.cluster_facts import ClusterFacts, Partition, SlurmNode
from dsrun.slurm.render import notation
from dsrun.slurm.render.environment import gpus_of, workers
from dsrun.slurm.render.options import SlurmSpec
from dsrun.system import hostlist
from dsrun.system.terminal.display import counted

# A worker that imports torch and DeepSpeed and holds a small model needs about this much of the host (measured: 1.5 GiB
# for the imports and pinned buffers of the demo); less ends in an OUT_OF_MEMORY job.
_LITTLE_MIB = 4096


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """A completed spec in numbers: GPUs and memory (MiB) of each node, time in seconds; None where none is given.

    `resources` are the names of the generic resources it asks for. `memory` is what it gets where it shares the node.
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

    @property
    def memory_flag(self) -> str:
        return "--mem-per-cpu" if self.spec.mem_per_cpu else "--mem-per-gpu" if self.spec.mem_per_gpu else "--mem"

    def memory_on(self, node: SlurmNode) -> float | None:
        """MiB that it takes of `node`: SLURM gives a job that shares with none all cores and GPUs, and their memory."""
        if not self.spec.exclusive or self.spec.mem:
            return self.memory
        return _requested_memory(self.spec, node.cores, node.gpu_count)


def _requested_memory(spec: SlurmSpec, cores: int, gpus: int) -> float | None:
    """MiB of each node; None where no option says so."""
    given = ((spec.mem, 1), (spec.mem_per_cpu, cores), (spec.mem_per_gpu, gpus))
    return next(((notation.mib(size) or 0) * count for size, count in given if size), None)


def request(spec: SlurmSpec) -> JobRequest:
    """`spec`, as it is rendered, in numbers."""
    gpus = f"gpu:{spec.gpus_per_node}" if spec.gpus_per_node else spec.gres or ""
    resources = (re.sub(r"^gres[/:]", "", word.strip()) for word in (spec.gres or "").split(","))
    return JobRequest(
        spec=spec,
        partitions=tuple(name for name in (spec.partition or "").split(",") if name),
        gpus=tuple(each for each in parse_gres(gpus) if each.count),
        resources=tuple(dict.fromkeys(re.split("[:=]", word)[0] for word in resources if word)),
        memory=_requested_memory(spec, spec.cpus_per_task or 1, gpus_of(spec)),
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


def check_resources(wanted: JobRequest, partition: Partition, facts: ClusterFacts) -> Iterator[Finding]:
    unknown = list(_unknown(wanted, partition, facts))
    yield from unknown
    if unknown or not set(feature_names(wanted.spec.constraint or "")) <= {
        feature for node in facts.nodes for feature in node.features
    }:
        return  # no node has what does not exist
    pool = [node for node in facts.nodes_of(partition) if _is_let(wanted, node)]
    if len(pool) < wanted.spec.nodes:
        picked = wanted.spec.constraint or wanted.spec.exclude or wanted.spec.nodelist
        yield finding_of(
            "slurm_nodes.picked" if picked else "slurm_nodes",
            where="--nodes",
            name=partition.name,
            count=len(pool),
            nodes=wanted.spec.nodes,
            fix=f"--nodes {len(pool)}" if pool else None,
        )
        return
    lacks = list(_lacks(wanted, partition, pool))
    yield from lacks
    fitting = [node for node in pool if all(test(node) for test in _tests(wanted, partition).values())]
    if not lacks and len(fitting) < wanted.spec.nodes:
        yield finding_of(
            "slurm_no_such_nodes",
            where="--nodes",
            count=len(fitting),
            total=len(pool),
            name=partition.name,
            wanted=_requirements(wanted),
            fix=f"--nodes {len(fitting)}" if fitting else None,
        )
    elif not lacks:
        yield from _asleep(wanted, partition, fitting)
        yield from _kinds(wanted, partition, fitting)
    yield from _little_memory(wanted, partition, facts)


def _gpus(wanted: JobRequest) -> Message:
    texts = {True: "slurm.typed_gpus", False: "slurm.gpus"}
    return joined(" and ", (text_of(texts[bool(each.type)], count=each.count, type=each.type) for each in wanted.gpus))


def _cpu_cores(wanted: JobRequest) -> Message:
    return text_of("slurm.cores", count=wanted.spec.cpus_per_task)


def _requirements(wanted: JobRequest) -> Message:
    others = [name for name in wanted.resources if name != "gpu"]
    parts = [*([_gpus(wanted)] if wanted.gpus else []), *others]
    parts += [_cpu_cores(wanted)] if wanted.spec.cpus_per_task else []
    parts += [notation.gib(wanted.memory)] if wanted.memory else []
    return joined(", ", parts)


def _matches(node: SlurmNode, constraint: str) -> bool:
    """Whether `node` has the features; True for forms in which nodes may differ, and for mixed operators."""
    if not constraint or re.search(r"[\[\]()*]", constraint):
        return True
    either, both = "|" in constraint, bool(re.search("[&,]", constraint))
    names = feature_names(constraint)
    if either and both:
        return True
    return any(name in node.features for name in names) if either else all(name in node.features for name in names)


def may_take(wanted: JobRequest, node: SlurmNode) -> bool:
    """Whether the job lets the scheduler choose `node`, and it has its GPUs."""
    return _is_let(wanted, node) and all(_has(node, each) for each in wanted.gpus)


def _is_let(wanted: JobRequest, node: SlurmNode) -> bool:
    named = hosts(wanted.spec.nodelist)
    return (
        node.name not in hosts(wanted.spec.exclude)
        and _matches(node, wanted.spec.constraint or "")
        and (len(named) < wanted.spec.nodes or node.name in named)
    )


def _unknown(wanted: JobRequest, partition: Partition, facts: ClusterFacts) -> Iterator[Finding]:
    """Generic resources and GPU types that do not exist; SLURM tells upper from lower case."""
    known = {name for node in facts.nodes for name in node.resources}
    for name in wanted.resources:
        if name != "gpu" and name not in known:
            yield finding_of("slurm_gres_unknown", where="--gres", name=name, fix=suggestion(name, known))
    if wanted.gpus and "gpu" not in known:
        yield finding_of("slurm_no_gpus", where=wanted.gpu_flag)
        return
    types = {group.type for node in facts.nodes for group in node.gpus}
    here = {group.type for node in facts.nodes_of(partition) for group in node.gpus}
    for each in wanted.gpus:
        if each.type is not None and each.type not in types:
            named = {kind for kind in types if kind}
            untyped = text_of("slurm_gpu_type.untyped", count=each.count)
            fix = suggestion(each.type, named) if named else untyped
            yield finding_of("slurm_gpu_type", where=wanted.gpu_flag, type=each.type, fix=fix)
        elif each.type is not None and each.type not in here:
            others = [one.name for one in facts.partitions if any(_has(node, each) for node in facts.nodes_of(one))]
            yield finding_of(
                "slurm_gpu_type.elsewhere",
                where=wanted.gpu_flag,
                name=partition.name,
                type=each.type,
                fix=f"--partition {others[0]}" if others else None,
            )


def _has(node: SlurmNode, gpus: GpuGres) -> bool:
    return _count(node, {gpus.type}) >= gpus.count


def _count(node: SlurmNode, types: set[str | None]) -> int:
    """The node's GPUs of `types`; None stands for any."""
    return sum(group.count for group in node.gpus if None in types or group.type in types)


def _tests(wanted: JobRequest, partition: Partition) -> dict[str, Callable[[SlurmNode], bool]]:
    """By kind of resource, whether a node has what the job needs of it."""
    tests: dict[str, Callable[[SlurmNode], bool]] = {}
    if wanted.gpus:
        tests["gpus"] = lambda node: all(_has(node, each) for each in wanted.gpus)
    others = set(wanted.resources) - {"gpu"}
    if others:
        tests["gres"] = lambda node: others <= set(node.resources)
    if wanted.spec.cpus_per_task:
        tests["cores"] = lambda node: _cores(node, partition) >= (wanted.spec.cpus_per_task or 0)
    if wanted.memory:
        tests["memory"] = lambda node: _memory(node, partition) >= (wanted.memory_on(node) or 0)
    return tests


def _cores(node: SlurmNode, partition: Partition) -> int:
    return int(min(node.cores, partition.max_cpus_per_node))


def _memory(node: SlurmNode, partition: Partition) -> float:
    return min(node.memory, partition.max_memory_per_node)


def _lacks(wanted: JobRequest, partition: Partition, pool: Sequence[SlurmNode]) -> Iterator[Finding]:
    """A finding for each resource that too few nodes have, with what the best of them have."""
    types = {each.type for each in wanted.gpus}
    best: dict[str, Callable[[], str]] = {
        "gpus": lambda: str(max(_count(node, types) for node in pool)),
        "gres": lambda: text_of("slurm.none"),
        "cores": lambda: str(max(_cores(node, partition) for node in pool)),
        "memory": lambda: notation.gib(max(_memory(node, partition) for node in pool)),
    }
    requested = {
        "gpus": (wanted.gpu_flag, _gpus(wanted)),
        "gres": ("--gres", ", ".join(wanted.resources)),
        "cores": ("--cpus-per-task", _cpu_cores(wanted)),
        "memory": (wanted.memory_flag, notation.gib(max(wanted.memory_on(node) or 0 for node in pool))),
    }
    for code, test in _tests(wanted, partition).items():
        count = sum(map(test, pool))
        if count >= wanted.spec.nodes:
            continue
        flag, what = requested[code]
        given: dict[str, Any] = {"where": flag, "name": partition.name, "what": what}
        if count:
            number: dict[str, Any] = {"count": count, "total": len(pool), "nodes": wanted.spec.nodes}
            found = finding_of("slurm_lacks.one" if count == 1 else "slurm_lacks.some", **number, **given)
        else:
            found = finding_of("slurm_lacks", best=best[code](), **given)
        yield replace(found, code=f"slurm_{code}")


def _kinds(wanted: JobRequest, partition: Partition, fitting: Sequence[SlurmNode]) -> Iterator[Finding]:
    """GPUs of no type may be of any kind, and the slowest and smallest of them decide."""
    kinds = {group.type: None for node in fitting for group in node.gpus}
    if len(kinds) > 1 and any(each.type is None for each in wanted.gpus):
        names = joined(", ", [kind or text_of("slurm.untyped") for kind in kinds])
        kind = next(kind for kind in kinds if kind)
        yield finding_of("slurm_gpu_kinds", where=wanted.gpu_flag, name=partition.name, names=names, kind=kind)


def _asleep(wanted: JobRequest, partition: Partition, fitting: Sequence[SlurmNode]) -> Iterator[Finding]:
    awake = [node for node in fitting if node.is_usable]
    if len(awake) < wanted.spec.nodes:
        down = next(node for node in fitting if not node.is_usable)
        why = f"{down.name}: {down.state.lower()}{', ' + down.reason if down.reason else ''}"
        yield finding_of(
            "slurm_nodes_down",
            where="--nodes",
            count=len(awake),
            total=len(fitting),
            name=partition.name,
            nodes=wanted.spec.nodes,
            why=why,
            fix=None if awake else text_of("slurm_nodes_down.all"),
        )


def _little_memory(wanted: JobRequest, partition: Partition, facts: ClusterFacts) -> Iterator[Finding]:
    """A job that asks for no memory gets the cluster's default, often far less than a node has."""
    if wanted.memory is not None or wanted.spec.exclusive:  # --mem 0 is all of it
        return
    default = _default_memory(wanted, partition, facts)
    count = workers(wanted.spec)
    if default is not None and default < _LITTLE_MIB * count:
        gets, shared_by = notation.gib(default), counted(count, "worker")
        yield finding_of("slurm_memory_default", where="--mem", default=gets, workers=shared_by)


def _default_memory(wanted: JobRequest, partition: Partition, facts: ClusterFacts) -> float | None:
    """MiB of each node by the partition's or the cluster's default; None where jobs get all (slurm.conf, DefMem...)."""
    defaults = {key: notation.mib(text) for key, text in partition.job_defaults.items()}
    if wanted.gpus and (per_gpu := defaults.get("DefMemPerGPU")):
        return per_gpu * gpus_of(wanted.spec)
    if per_node := defaults.get("DefMemPerNode"):
        return per_node
    per_core = defaults.get("DefMemPerCPU") or facts.memory_per_core
    return per_core * (wanted.spec.cpus_per_task or 1) if per_core else None
