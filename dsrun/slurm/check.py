"""A job against the cluster it is for: what the scheduler would refuse or leave pending for ever.

SLURM 22.05 with EnforcePartLimits=NO takes a job whose time, nodes or memory are beyond its partition's limits, and
never starts it; what it refuses, it refuses in words such as "Requested node configuration is not available".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from dsrun.errors import did_you_mean
from dsrun.findings import Finding, Level
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
            "group", f"partition {partition.name} is for the groups {', '.join(partition.groups)}, and you are in none",
            "take another --partition, or ask for access", "--partition",
        )  # fmt: skip
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
            f"SLURM takes no list of partitions from account {account}: it is bound to {', '.join(map(str, bound))}",
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
            "account_missing", "you have no account on this cluster, and it takes jobs on accounts only",
            "ask its administrators for one", "--account",
        )  # fmt: skip
        return
    if account is None:
        return
    if not _same(account, mine):
        if "associations" in known.enforced or wanted.spec.account:
            found = error(
                "account_unknown", f"{account!r} is not your account", did_you_mean(account, mine), "--account"
            )
            yield found if "associations" in known.enforced else replace(found, level="warning")
        return
    usable = [name for name in mine if _may(name, partition)]
    if not _may(account, partition):
        named = f"account {account}" + ("" if wanted.spec.account else " (your default)")
        yield error(
            "account_partition", f"{named} may not use partition {partition.name}: its jobs would never start",
            f"--account {usable[0]}" if usable else "take another --partition", "--account",
        )  # fmt: skip
    elif not _association(known, account, partition):
        places = [each.partition for each in known.associations if _same(account, (each.account,)) and each.partition]
        yield error(
            "account_partition", f"you may use account {account} in {', '.join(places)} only",
            f"--partition {places[0]}", "--account",
        )  # fmt: skip


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
            "qos_unknown", f"there is no QOS {wanted.spec.qos!r}", did_you_mean(wanted.spec.qos, names), "--qos"
        )
        # SLURM takes any name where it enforces none.
        yield found if known.enforced else replace(found, level="warning")
        return
    mine = _association(known, account, partition) if account else None
    if mine and "qos" in known.enforced and not _same(quality.name, mine):
        yield error(
            "qos_account", f"account {account} may not use QOS {quality.name} in partition {partition.name}",
            f"--qos {next(iter(mine))}", "--qos",
        )  # fmt: skip
    elif (partition.qos and not _same(quality.name, partition.qos)) or _same(quality.name, partition.denied_qos):
        yield error(
            "qos_partition", f"partition {partition.name} does not take QOS {quality.name}",
            f"--qos {partition.qos[0]}" if partition.qos else "take another --qos", "--qos",
        )  # fmt: skip
    if "limits" in known.enforced:
        yield from _limits(wanted, quality)


def _limits(wanted: Request, quality: Qos) -> Iterator[Finding]:
    if wanted.time is not None and wanted.time > quality.time_limit:
        yield error(
            "qos_time", f"{notation.clock(wanted.time)} is above the limit of QOS {quality.name}",
            f"--time {notation.clock(quality.time_limit)}", "--time",
        )  # fmt: skip
    gpus = gpus_of(wanted.spec) * wanted.spec.nodes
    if gpus > quality.max_gpus:
        yield error(
            "qos_gpus", f"{gpus} GPUs are more than a job of QOS {quality.name} may have, {quality.max_gpus:.0f}",
            "ask for fewer, or take another --qos", "--qos",
        )  # fmt: skip


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
            fix = did_you_mean(unknown[0], facts.by_name) if len(facts.nodes) <= 1000 else "sinfo -N lists them"
            yield error("node_unknown", f"there is no node {', '.join(unknown[:5])}", fix, flag)
    features = {feature for node in facts.nodes for feature in node.features}
    for name in resources.feature_names(wanted.spec.constraint or ""):
        if name not in features:
            yield error(
                "feature_unknown", f"no node has the feature {name!r}", did_you_mean(name, features), "--constraint"
            )
    if wanted.spec.reservation and not set(wanted.spec.reservation.split(",")) <= set(facts.reservations):
        yield error(
            "reservation_unknown", f"there is no reservation {wanted.spec.reservation!r}",
            did_you_mean(wanted.spec.reservation, facts.reservations), "--reservation",
        )  # fmt: skip
    if wanted.spec.licenses and facts.licenses is not None:
        yield from check_licenses(wanted.spec.licenses, facts.licenses)


def _array(wanted: Request, facts: ClusterFacts) -> Iterator[Finding]:
    # Of "0-9,20%4" the steps and the limit are not task numbers.
    numbers = re.findall(r"\d+", re.sub(r"[:%]\d+", "", wanted.spec.array or ""))
    highest = max(map(int, numbers), default=-1)
    if highest >= facts.max_array_size:
        yield error(
            "array_size", f"task {highest} of the array: this cluster takes numbers below {facts.max_array_size}",
            "submit several smaller arrays", "--array",
        )  # fmt: skip


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
            "partition_missing", "this cluster has no default partition", f"name one: {', '.join(known)}", "--partition"
        )
    return error("partition_unknown", f"there is no partition {name!r}", did_you_mean(name, known), "--partition")


def _state(partition: Partition, facts: ClusterFacts) -> Iterator[Finding]:
    others = ", ".join(each.name for each in facts.partitions if each.is_up and not each.hidden and each.nodes)
    if partition.state in ("DRAIN", "INACTIVE"):
        yield error(
            "partition_closed", f"partition {partition.name} takes no new jobs ({partition.state})",
            f"take another: {others}", "--partition",
        )  # fmt: skip
    elif not partition.is_up:
        yield error(
            "partition_down", f"partition {partition.name} is {partition.state}: its jobs wait",
            f"take another: {others}", "--partition",
        )  # fmt: skip


def _time(wanted: Request, partition: Partition) -> Iterator[Finding]:
    limit = wanted.time
    if limit is not None and limit > partition.time_limit:
        yield error(
            "time_limit",
            f"{notation.clock(limit)} is above the limit of partition {partition.name}, "
            f"{notation.clock(partition.time_limit)}: the job would never start",
            f"--time {notation.clock(partition.time_limit)}; the requeued job goes on from its checkpoint",
            "--time",
        )
    real = limit if limit is not None else (partition.time_default or partition.time_limit)
    if (lead := wanted.spec.signal_lead) is not None and lead >= real:
        yield error(
            "signal_lead",
            f"a signal {lead} s before the time limit comes before the start: that is {notation.clock(real)}",
            "raise --time, or lower --signal-lead", "--signal-lead",
        )  # fmt: skip
    if limit is None and real != NO_LIMIT:
        yield Finding(
            level="info", code="slurm_time_default", where="--time", fix="give --time",
            message=f"without --time, partition {partition.name} ends the job after {notation.clock(real)}",
        )  # fmt: skip


def _node_count(wanted: Request, partition: Partition, facts: ClusterFacts) -> Iterator[Finding]:
    least, most = partition.min_nodes, partition.max_nodes
    if not least <= wanted.spec.nodes <= most:
        bound = f"at most {most:.0f}" if wanted.spec.nodes > most else f"at least {least}"
        yield error(
            "node_limit", f"a job of partition {partition.name} has {bound} nodes, not {wanted.spec.nodes}",
            f"--nodes {most if wanted.spec.nodes > most else least:.0f}, or another --partition", "--nodes",
        )  # fmt: skip
    named = resources.hosts(wanted.spec.nodelist)
    if len(named) > wanted.spec.nodes:
        yield error(
            "nodelist_size", f"--nodelist names {len(named)} nodes, and the job has {wanted.spec.nodes}",
            f"--nodes {len(named)}", "--nodelist",
        )  # fmt: skip
    strangers = [name for name in named if name in facts.by_name and name not in partition.nodes]
    if strangers:
        yield error(
            "node_elsewhere", f"{', '.join(strangers[:5])} is not in partition {partition.name}",
            "name nodes of that partition, or another --partition", "--nodelist",
        )  # fmt: skip
