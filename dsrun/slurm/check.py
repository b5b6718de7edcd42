"""A job against the cluster it is for: what the scheduler would refuse or leave pending for ever.

SLURM 22.05 with EnforcePartLimits=NO takes a job whose time, nodes or memory are beyond its partition's limits, and
never starts it; what it refuses, it refuses in words such as "Requested node configuration is not available".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from dsrun.errors import did_you_mean
from dsrun.findings import Finding, Level, Message
from dsrun.slurm import resources
from dsrun.slurm.cluster.facts import NO_LIMIT, Accounting, ClusterFacts, Partition, Qos
from dsrun.slurm.licenses import check_licenses
from dsrun.slurm.render import notation
from dsrun.slurm.render.environment import gpus_of
from dsrun.slurm.render.options import SlurmSpec
from dsrun.slurm.resources import Request, error, request


def _permissions(wanted: Request, partition: Partition, facts: ClusterFacts) -> Iterator[Finding]:
    """What the partition and the accounting database do not let this user do."""
    if partition.groups and facts.user != "root" and not set(partition.groups) & set(facts.groups):
        yield error(
            "group",
            Message(
                "partition {name} is for the groups {groups}, and you are in none",
                name=partition.name,
                groups=", ".join(partition.groups),
            ),
            Message("take another --partition, or ask for access"),
            "--partition",
        )
    known = facts.accounting
    if known is None:
        return
    account = wanted.spec.account or known.default_account
    yield from _account(wanted, known, partition, account)
    yield from _qos(wanted, known, partition, account)


def _partition_list(wanted: Request, facts: ClusterFacts) -> Iterator[Finding]:
    """SLURM takes no list of partitions from an account that is bound to one of them."""
    known = facts.accounting
    account = wanted.spec.account or (known.default_account if known else None)
    if known is None or account is None or len(wanted.partitions) < 2:
        return
    bound = [each.partition for each in known.associations if each.partition and _same(account, (each.account,))]
    if "associations" in known.enforced and set(bound) & set(wanted.partitions):
        yield error(
            "partitions",
            Message(
                "SLURM takes no list of partitions from account {account}: it is bound to {str}",
                account=account,
                str=", ".join(map(str, bound)),
            ),
            f"--partition {wanted.partitions[0]}",
            "--partition",
        )


def _same(name: str, others: tuple[str, ...]) -> bool:
    """SLURM takes accounts and QOS in any case."""
    return name.lower() in {each.lower() for each in others}


def _account(wanted: Request, known: Accounting, partition: Partition, account: str | None) -> Iterator[Finding]:
    mine = tuple(dict.fromkeys(each.account for each in known.associations))
    if "associations" in known.enforced and not mine:
        yield error(
            "account_missing",
            Message("you have no account on this cluster, and it takes jobs on accounts only"),
            Message("ask its administrators for one"),
            "--account",
        )
        return
    if account is None:
        return
    if not _same(account, mine):
        if "associations" in known.enforced or wanted.spec.account:
            found = error(
                "account_unknown",
                Message("{account!r} is not your account", account=account),
                did_you_mean(account, mine),
                "--account",
            )
            yield found if "associations" in known.enforced else replace(found, level="warning")
        return
    usable = [name for name in mine if _may(name, partition)]
    if not _may(account, partition):
        named = f"account {account}" + ("" if wanted.spec.account else " (your default)")
        yield error(
            "account_partition",
            Message(
                "{named} may not use partition {name}: its jobs would never start", named=named, name=partition.name
            ),
            f"--account {usable[0]}" if usable else Message("take another --partition"),
            "--account",
        )
    elif not _association(known, account, partition):
        places = [each.partition for each in known.associations if _same(account, (each.account,)) and each.partition]
        yield error(
            "account_partition",
            Message("you may use account {account} in {places} only", account=account, places=", ".join(places)),
            f"--partition {places[0]}",
            "--account",
        )


def _may(account: str, partition: Partition) -> bool:
    if partition.accounts:
        return _same(account, partition.accounts)
    return not _same(account, partition.denied_accounts)


def _association(known: Accounting, account: str, partition: Partition) -> tuple[str, ...] | None:
    """The QOS of the association that counts: that for the partition, else that for all; None for none."""
    fitting = [each for each in known.associations if _same(account, (each.account,))]
    for place in (partition.name, None):
        for each in fitting:
            if each.partition == place:
                return (*each.qos, *((each.default_qos,) if each.default_qos else ())) or ("",)
    return None


def _qos(wanted: Request, known: Accounting, partition: Partition, account: str | None) -> Iterator[Finding]:
    if wanted.spec.qos is None:
        return
    quality = next((each for each in known.qualities if _same(wanted.spec.qos, (each.name,))), None)
    if quality is None:
        names = (each.name for each in known.qualities)
        found = error(
            "qos_unknown",
            Message("there is no QOS {qos!r}", qos=wanted.spec.qos),
            did_you_mean(wanted.spec.qos, names),
            "--qos",
        )
        # SLURM takes any name where it enforces none.
        yield found if known.enforced else replace(found, level="warning")
        return
    mine = _association(known, account, partition) if account else None
    if mine and "qos" in known.enforced and not _same(quality.name, mine):
        yield error(
            "qos_account",
            Message(
                "account {account} may not use QOS {name} in partition {name_2}",
                account=account,
                name=quality.name,
                name_2=partition.name,
            ),
            f"--qos {next(iter(mine))}",
            "--qos",
        )
    elif (partition.qos and not _same(quality.name, partition.qos)) or _same(quality.name, partition.denied_qos):
        yield error(
            "qos_partition",
            Message("partition {name} does not take QOS {name_2}", name=partition.name, name_2=quality.name),
            f"--qos {partition.qos[0]}" if partition.qos else Message("take another --qos"),
            "--qos",
        )
    if "limits" in known.enforced:
        yield from _limits(wanted, quality)


def _limits(wanted: Request, quality: Qos) -> Iterator[Finding]:
    if wanted.time is not None and wanted.time > quality.time_limit:
        yield error(
            "qos_time",
            Message("{time} is above the limit of QOS {name}", time=notation.clock(wanted.time), name=quality.name),
            f"--time {notation.clock(quality.time_limit)}",
            "--time",
        )
    gpus = gpus_of(wanted.spec) * wanted.spec.nodes
    if gpus > quality.max_gpus:
        yield error(
            "qos_gpus",
            Message(
                "{gpus} GPUs are more than a job of QOS {name} may have, {max_gpus:.0f}",
                gpus=gpus,
                name=quality.name,
                max_gpus=quality.max_gpus,
            ),
            Message("ask for fewer, or take another --qos"),
            "--qos",
        )


def check(spec: SlurmSpec, facts: ClusterFacts) -> list[Finding]:
    """What is wrong with `spec` on this cluster, the worst first; [] where it fits.

    Of several partitions one that fits is enough: what the others lack are warnings then.
    """
    wanted = request(spec)
    found = [*_names(wanted, facts), *_array(wanted, facts), *_partition_list(wanted, facts)]
    each = {name: _in_partition(wanted, facts, name) for name in wanted.partitions or (None,)}
    some_fit = any(all(one.level != "error" for one in findings) for findings in each.values())
    for findings in each.values():
        found += [replace(one, level="warning") if some_fit and one.level == "error" else one for one in findings]
    order: dict[Level, int] = {"error": 0, "warning": 1, "info": 2}
    return sorted(dict.fromkeys(found), key=lambda one: order[one.level])


def _names(wanted: Request, facts: ClusterFacts) -> Iterator[Finding]:
    """Names that the cluster does not have."""
    for flag, text in (("--nodelist", wanted.spec.nodelist), ("--exclude", wanted.spec.exclude)):
        unknown = [name for name in resources.hosts(text) if name not in facts.by_name]
        if unknown:
            fix = (
                did_you_mean(unknown[0], facts.by_name) if len(facts.nodes) <= 1000 else Message("sinfo -N lists them")
            )
            yield error(
                "node_unknown", Message("there is no node {unknown}", unknown=", ".join(unknown[:5])), fix, flag
            )
    features = {feature for node in facts.nodes for feature in node.features}
    for name in resources.feature_names(wanted.spec.constraint or ""):
        if name not in features:
            yield error(
                "feature_unknown",
                Message("no node has the feature {name!r}", name=name),
                did_you_mean(name, features),
                "--constraint",
            )
    if wanted.spec.reservation and not set(wanted.spec.reservation.split(",")) <= set(facts.reservations):
        yield error(
            "reservation_unknown",
            Message("there is no reservation {reservation!r}", reservation=wanted.spec.reservation),
            did_you_mean(wanted.spec.reservation, facts.reservations),
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
    if all(name in facts.by_name for name in resources.hosts(wanted.spec.nodelist)):
        found += resources.check_resources(wanted, partition, facts)
    return [*found, *_permissions(wanted, partition, facts)]


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
        did_you_mean(name, known),
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
        bound = f"at most {most:.0f}" if wanted.spec.nodes > most else f"at least {least}"
        yield error(
            "node_limit",
            Message(
                "a job of partition {name} has {bound} nodes, not {nodes}",
                name=partition.name,
                bound=bound,
                nodes=wanted.spec.nodes,
            ),
            Message("--nodes {most:.0f}, or another --partition", most=most if wanted.spec.nodes > most else least),
            "--nodes",
        )
    named = resources.hosts(wanted.spec.nodelist)
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
