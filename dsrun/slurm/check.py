"""A job against the cluster it is for: what the scheduler would refuse or leave pending for ever.

SLURM 22.05 with EnforcePartLimits=NO takes a job whose time, nodes or memory are beyond its partition's limits, and
never starts it; what it refuses, it refuses in words such as "Requested node configuration is not available".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from dsrun.findings.finding import Finding, has_errors, worst_first
from dsrun.messages import Message, suggestion
from dsrun.slurm import resources
from dsrun.slurm.cluster.facts import NO_LIMIT, ClusterFacts, Partition
from dsrun.slurm.licenses import check_licenses
from dsrun.slurm.permissions import check_partition_list, check_permissions
from dsrun.slurm.render import notation
from dsrun.slurm.render.options import SlurmSpec
from dsrun.slurm.request import Request, error, feature_names, hosts, request


def check(spec: SlurmSpec, facts: ClusterFacts) -> list[Finding]:
    """What is wrong with `spec` on this cluster, the worst first; [] where it fits.

    Of several partitions one that fits is enough: what the others lack are warnings then.
    """
    wanted = request(spec)
    found = [*_names(wanted, facts), *_array(wanted, facts), *check_partition_list(wanted, facts)]
    each = {name: _in_partition(wanted, facts, name) for name in wanted.partitions or (None,)}
    some_fit = any(not has_errors(findings) for findings in each.values())
    for findings in each.values():
        found += [replace(one, level="warning") if some_fit and one.level == "error" else one for one in findings]
    return worst_first(dict.fromkeys(found))


def _names(wanted: Request, facts: ClusterFacts) -> Iterator[Finding]:
    """Names that the cluster does not have."""
    for flag, text in (("--nodelist", wanted.spec.nodelist), ("--exclude", wanted.spec.exclude)):
        unknown = [name for name in hosts(text) if name not in facts.by_name]
        if unknown:
            fix = suggestion(unknown[0], facts.by_name) if len(facts.nodes) <= 1000 else Message("sinfo -N lists them")
            yield error(
                "node_unknown", Message("there is no node {unknown}", unknown=", ".join(unknown[:5])), fix, flag
            )
    features = {feature for node in facts.nodes for feature in node.features}
    for name in feature_names(wanted.spec.constraint or ""):
        if name not in features:
            yield error(
                "feature_unknown",
                Message("no node has the feature {name!r}", name=name),
                suggestion(name, features),
                "--constraint",
            )
    if wanted.spec.reservation and not set(wanted.spec.reservation.split(",")) <= set(facts.reservations):
        yield error(
            "reservation_unknown",
            Message("there is no reservation {reservation!r}", reservation=wanted.spec.reservation),
            suggestion(wanted.spec.reservation, facts.reservations),
            "--reservation",
        )
    if wanted.spec.licenses and facts.licenses is not None:
        yield from check_licenses(wanted.spec.licenses, facts.licenses)


def _array(wanted: Request, facts: ClusterFacts) -> Iterator[Finding]:
    # Of "0-9,20%4" the steps and the limit are not task numbers.
    numbers = re.findall(r"\d+", re.sub(r"[:%]\d+", "", wanted.spec.array or ""))
    highest = max(map(int, numbers), default=-1)
    if highest >= facts.max_array_size:
        yield error(
            "array_size",
            Message(
                "task {highest} of the array: this cluster takes numbers below {max_array_size}",
                highest=highest,
                max_array_size=facts.max_array_size,
            ),
            Message("submit several smaller arrays"),
            "--array",
        )


def _in_partition(wanted: Request, facts: ClusterFacts, name: str | None) -> list[Finding]:
    partition = facts.partition(name)
    if partition is None:
        return [_no_partition(facts, name)]
    found = [*_state(partition, facts), *_time(wanted, partition), *_node_count(wanted, partition, facts)]
    if all(name in facts.by_name for name in hosts(wanted.spec.nodelist)):
        found += resources.check_resources(wanted, partition, facts)
    return [*found, *check_permissions(wanted, partition, facts)]


def _no_partition(facts: ClusterFacts, name: str | None) -> Finding:
    known = [each.name for each in facts.partitions if not each.hidden]
    if name is None:
        return error(
            "partition_missing",
            Message("this cluster has no default partition"),
            Message("name one: {known}", known=", ".join(known)),
            "--partition",
        )
    return error(
        "partition_unknown",
        Message("there is no partition {name!r}", name=name),
        suggestion(name, known),
        "--partition",
    )


def _state(partition: Partition, facts: ClusterFacts) -> Iterator[Finding]:
    others = ", ".join(each.name for each in facts.partitions if each.is_up and not each.hidden and each.nodes)
    if partition.state in ("DRAIN", "INACTIVE"):
        yield error(
            "partition_closed",
            Message("partition {name} takes no new jobs ({state})", name=partition.name, state=partition.state),
            Message("take another: {others}", others=others),
            "--partition",
        )
    elif not partition.is_up:
        yield error(
            "partition_down",
            Message("partition {name} is {state}: its jobs wait", name=partition.name, state=partition.state),
            Message("take another: {others}", others=others),
            "--partition",
        )


def _time(wanted: Request, partition: Partition) -> Iterator[Finding]:
    limit = wanted.time
    if limit is not None and limit > partition.time_limit:
        yield error(
            "time_limit",
            Message(
                "{limit} is above the limit of partition {name}, {time_limit}: the job would never start",
                limit=notation.clock(limit),
                name=partition.name,
                time_limit=notation.clock(partition.time_limit),
            ),
            Message(
                "--time {time_limit}; the requeued job goes on from its checkpoint",
                time_limit=notation.clock(partition.time_limit),
            ),
            "--time",
        )
    real = limit if limit is not None else (partition.time_default or partition.time_limit)
    if (lead := wanted.spec.signal_lead) is not None and lead >= real:
        yield error(
            "signal_lead",
            Message(
                "a signal {lead} s before the time limit comes before the start: that is {real}",
                lead=lead,
                real=notation.clock(real),
            ),
            Message("raise --time, or lower --signal-lead"),
            "--signal-lead",
        )
    if limit is None and real != NO_LIMIT:
        yield Finding(
            level="info",
            code="slurm_time_default",
            where="--time",
            fix=Message("give --time"),
            message=Message(
                "without --time, partition {name} ends the job after {real}",
                name=partition.name,
                real=notation.clock(real),
            ),
        )


def _node_count(wanted: Request, partition: Partition, facts: ClusterFacts) -> Iterator[Finding]:
    least, most = partition.min_nodes, partition.max_nodes
    if not least <= wanted.spec.nodes <= most:
        bound = (
            Message("at most {limit:g}", limit=most)
            if wanted.spec.nodes > most
            else Message("at least {limit:g}", limit=least)
        )
        yield error(
            "node_limit",
            Message(
                "a job of partition {name} has {bound} nodes, not {nodes}",
                name=partition.name,
                bound=bound,
                nodes=wanted.spec.nodes,
            ),
            Message("--nodes {nodes:.0f}, or another --partition", nodes=most if wanted.spec.nodes > most else least),
            "--nodes",
        )
    named = hosts(wanted.spec.nodelist)
    if len(named) > wanted.spec.nodes:
        yield error(
            "nodelist_size",
            Message(
                "--nodelist names {count} nodes, and the job has {nodes}", count=len(named), nodes=wanted.spec.nodes
            ),
            f"--nodes {len(named)}",
            "--nodelist",
        )
    strangers = [name for name in named if name in facts.by_name and name not in partition.nodes]
    if strangers:
        yield error(
            "node_elsewhere",
            Message("{strangers} is not in partition {name}", strangers=", ".join(strangers[:5]), name=partition.name),
            Message("name nodes of that partition, or another --partition"),
            "--nodelist",
        )
