"""Whether a partition has nodes with what a job asks of each: GPUs, cores, memory and features."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from dsrun.findings.finding import Finding
from dsrun.hardware.gres import Gres
from dsrun.messages import Message, joined, suggestion
from dsrun.slurm.cluster.facts import ClusterFacts, Node, Partition
from dsrun.slurm.render import notation
from dsrun.slurm.render.environment import gpus_of, workers
from dsrun.slurm.request import Request, error, feature_names, hosts
from dsrun.system.display import counted

# A worker that imports torch and DeepSpeed and holds a small model needs about this much of the host (measured: 1.5 GiB
# for the imports and pinned buffers of the demo); less ends in an OUT_OF_MEMORY job.
_LITTLE_MIB = 4096


def check_resources(wanted: Request, partition: Partition, facts: ClusterFacts) -> Iterator[Finding]:
    """What this partition lacks for the job."""
    unknown = list(_unknown(wanted, partition, facts))
    yield from unknown
    if unknown or not set(feature_names(wanted.spec.constraint or "")) <= {
        feature for node in facts.nodes for feature in node.features
    }:
        return  # no node has what does not exist
    pool = _pool(wanted, partition, facts)
    if len(pool) < wanted.spec.nodes:
        picked = wanted.spec.constraint or wanted.spec.exclude or wanted.spec.nodelist
        yield error(
            "nodes",
            Message(
                "partition {name} has {count} nodes of those asked for, and the job wants {nodes}"
                if picked
                else "partition {name} has {count} nodes, and the job wants {nodes}",
                name=partition.name,
                count=len(pool),
                nodes=wanted.spec.nodes,
            ),
            f"--nodes {len(pool)}" if pool else Message("take another --partition, or ask for less"),
            "--nodes",
        )
        return
    lacks = list(_lacks(wanted, partition, pool))
    yield from lacks
    fitting = [node for node in pool if all(test(node) for test in _tests(wanted, partition).values())]
    if not lacks and len(fitting) < wanted.spec.nodes:
        yield error(
            "no_such_nodes",
            Message(
                "{count} of the {total} nodes of partition {name} have all of it: {wanted}",
                count=len(fitting),
                total=len(pool),
                name=partition.name,
                wanted=_requirements(wanted),
            ),
            f"--nodes {len(fitting)}" if fitting else Message("ask for less per node"),
            "--nodes",
        )
    elif not lacks:
        yield from _asleep(wanted, partition, fitting)
        yield from _kinds(wanted, partition, fitting)
    yield from _little_memory(wanted, partition, facts)


def _gpus(wanted: Request) -> Message:
    return joined(" and ", (_gpu_group(each) for each in wanted.gpus))


def _gpu_group(group: Gres) -> Message:
    return Message("{count} {type} GPUs" if group.type else "{count} GPUs", count=group.count, type=group.type)


def _cpu_cores(wanted: Request) -> Message:
    return Message("{count} cores", count=wanted.spec.cpus_per_task)


def _requirements(wanted: Request) -> Message:
    others = [name for name in wanted.resources if name != "gpu"]
    parts = [*([_gpus(wanted)] if wanted.gpus else []), *others]
    parts += [_cpu_cores(wanted)] if wanted.spec.cpus_per_task else []
    parts += [notation.gib(wanted.memory)] if wanted.memory else []
    return joined(", ", parts)


def _matches(node: Node, constraint: str) -> bool:
    """Whether `node` has the features; True for forms in which nodes may differ, and for mixed operators."""
    if not constraint or re.search(r"[\[\]()*]", constraint):
        return True
    either, both = "|" in constraint, bool(re.search("[&,]", constraint))
    names = feature_names(constraint)
    if either and both:
        return True
    return any(name in node.features for name in names) if either else all(name in node.features for name in names)


def _pool(wanted: Request, partition: Partition, facts: ClusterFacts) -> list[Node]:
    """The partition's nodes that the job lets the scheduler choose from."""
    named, excluded = hosts(wanted.spec.nodelist), set(hosts(wanted.spec.exclude))
    return [
        node
        for node in facts.nodes_of(partition)
        if node.name not in excluded
        and _matches(node, wanted.spec.constraint or "")
        and (len(named) < wanted.spec.nodes or node.name in named)
    ]


def _unknown(wanted: Request, partition: Partition, facts: ClusterFacts) -> Iterator[Finding]:
    """Generic resources and GPU types that do not exist; SLURM tells upper from lower case."""
    known = {name for node in facts.nodes for name in node.resources}
    for name in wanted.resources:
        if name != "gpu" and name not in known:
            yield error(
                "gres_unknown",
                Message("no node has the resource {name!r}", name=name),
                suggestion(name, known),
                "--gres",
            )
    if wanted.gpus and "gpu" not in known:
        yield error(
            "no_gpus",
            Message("no node of this cluster has GPUs"),
            Message("--gpus-per-node 0 trains on CPUs"),
            wanted.gpu_flag,
        )
        return
    types = {group.type for node in facts.nodes for group in node.gpus}
    here = {group.type for node in facts.nodes_of(partition) for group in node.gpus}
    for each in wanted.gpus:
        if each.type is not None and each.type not in types:
            named = {kind for kind in types if kind}
            fix = (
                suggestion(each.type, named)
                if named
                else Message("GPUs have no types here: {count} alone", count=each.count)
            )
            yield error(
                "gpu_type", Message("no node has GPUs of the type {type!r}", type=each.type), fix, wanted.gpu_flag
            )
        elif each.type is not None and each.type not in here:
            others = [one.name for one in facts.partitions if any(_has(node, each) for node in facts.nodes_of(one))]
            yield error(
                "gpu_type",
                Message("partition {name} has no GPUs of the type {type}", name=partition.name, type=each.type),
                f"--partition {others[0]}" if others else Message("ask for fewer"),
                wanted.gpu_flag,
            )


def _has(node: Node, gpus: Gres) -> bool:
    return _count(node, {gpus.type}) >= gpus.count


def _count(node: Node, types: set[str | None]) -> int:
    """The node's GPUs of `types`; None stands for any."""
    return sum(group.count for group in node.gpus if None in types or group.type in types)


def _tests(wanted: Request, partition: Partition) -> dict[str, Callable[[Node], bool]]:
    """By kind of resource, whether a node has what the job needs of it."""
    tests: dict[str, Callable[[Node], bool]] = {}
    if wanted.gpus:
        tests["gpus"] = lambda node: all(_has(node, each) for each in wanted.gpus)
    others = set(wanted.resources) - {"gpu"}
    if others:
        tests["gres"] = lambda node: others <= set(node.resources)
    if wanted.spec.cpus_per_task:
        tests["cores"] = lambda node: _cores(node, partition) >= (wanted.spec.cpus_per_task or 0)
    if wanted.memory:
        tests["memory"] = lambda node: _memory(node, partition) >= (wanted.memory or 0)
    return tests


def _cores(node: Node, partition: Partition) -> int:
    return int(min(node.cores, partition.max_cpus_per_node))


def _memory(node: Node, partition: Partition) -> float:
    return min(node.memory, partition.max_memory_per_node)


def _lacks(wanted: Request, partition: Partition, pool: Sequence[Node]) -> Iterator[Finding]:
    """A finding for each resource that too few nodes have, with what the best of them have."""
    types = {each.type for each in wanted.gpus}
    best: dict[str, Callable[[], str]] = {
        "gpus": lambda: str(max(_count(node, types) for node in pool)),
        "gres": lambda: Message("none"),
        "cores": lambda: str(max(_cores(node, partition) for node in pool)),
        "memory": lambda: notation.gib(max(_memory(node, partition) for node in pool)),
    }
    requested = {
        "gpus": (wanted.gpu_flag, _gpus(wanted)),
        "gres": ("--gres", ", ".join(wanted.resources)),
        "cores": ("--cpus-per-task", _cpu_cores(wanted)),
        "memory": ("--mem", notation.gib(wanted.memory or 0)),
    }
    for code, test in _tests(wanted, partition).items():
        count = sum(map(test, pool))
        if count >= wanted.spec.nodes:
            continue
        flag, what = requested[code]
        if count:
            message = Message(
                "{count} of the {total} nodes of partition {name} has {what}, and the job wants {nodes}"
                if count == 1
                else "{count} of the {total} nodes of partition {name} have {what}, and the job wants {nodes}",
                count=count,
                total=len(pool),
                name=partition.name,
                what=what,
                nodes=wanted.spec.nodes,
            )
            fix = Message("--nodes {count}, or less per node", count=count)
        else:
            message = Message(
                "no node of partition {name} has {what}: at most {best}",
                name=partition.name,
                what=what,
                best=best[code](),
            )
            fix = Message("ask for less per node, and for more nodes if that is too little")
        yield error(code, message, fix, flag)


def _kinds(wanted: Request, partition: Partition, fitting: Sequence[Node]) -> Iterator[Finding]:
    """GPUs of no type may be of any kind, and the slowest and smallest of them decide."""
    kinds = {group.type: None for node in fitting for group in node.gpus}
    if len(kinds) > 1 and any(each.type is None for each in wanted.gpus):
        names = [kind or Message("untyped ones") for kind in kinds]
        yield Finding(
            level="warning",
            code="slurm_gpu_kinds",
            where=wanted.gpu_flag,
            message=Message(
                "the job may get any GPUs of partition {name}, also several kinds: {names}",
                name=partition.name,
                names=joined(", ", names),
            ),
            fix=Message("name one: --gpus-per-node {kind}:N", kind=next(kind for kind in kinds if kind)),
        )


def _asleep(wanted: Request, partition: Partition, fitting: Sequence[Node]) -> Iterator[Finding]:
    awake = [node for node in fitting if node.is_usable]
    if len(awake) < wanted.spec.nodes:
        down = next(node for node in fitting if not node.is_usable)
        why = f"{down.name}: {down.state.lower()}{', ' + down.reason if down.reason else ''}"
        yield Finding(
            level="warning",
            code="slurm_nodes_down",
            where="--nodes",
            message=Message(
                "{count} of the {total} fitting nodes of partition {name} are up, and the job wants {nodes}: "
                "it will wait ({why})",
                count=len(awake),
                total=len(fitting),
                name=partition.name,
                nodes=wanted.spec.nodes,
                why=why,
            ),
            fix=Message("--nodes {count} starts sooner", count=len(awake))
            if awake
            else Message("sinfo -R says why they are down"),
        )


def _little_memory(wanted: Request, partition: Partition, facts: ClusterFacts) -> Iterator[Finding]:
    """A job that asks for no memory gets the cluster's default, often far less than a node has."""
    if wanted.memory is not None or wanted.spec.exclusive:  # --mem 0 is all of it
        return
    default = _default_memory(wanted, partition, facts)
    count = workers(wanted.spec)
    if default is not None and default < _LITTLE_MIB * count:
        message = Message(
            "without --mem the job gets {default} of each node for {workers}",
            default=notation.gib(default),
            workers=counted(count, "worker"),
        )
        fix = Message("give --mem; --mem 0 is the whole node's")
        yield Finding(level="info", code="slurm_memory_default", where="--mem", fix=fix, message=message)


def _default_memory(wanted: Request, partition: Partition, facts: ClusterFacts) -> float | None:
    """MiB of each node by the partition's or the cluster's default; None where jobs get all (slurm.conf, DefMem...)."""
    defaults = {key: notation.mib(text) for key, text in partition.job_defaults.items()}
    if wanted.gpus and (per_gpu := defaults.get("DefMemPerGPU")):
        return per_gpu * gpus_of(wanted.spec)
    if per_node := defaults.get("DefMemPerNode"):
        return per_node
    per_core = defaults.get("DefMemPerCPU") or facts.memory_per_core
    return per_core * (wanted.spec.cpus_per_task or 1) if per_core else None
