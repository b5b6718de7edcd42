"""A job against the cluster it is for: what the scheduler would refuse or leave pending for ever.

SLURM 22.05 with EnforcePartLimits=NO takes a job whose time, nodes or memory are beyond its partition's limits, and
never starts it; what it refuses, it refuses in words such as "Requested node configuration is not available"."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from dsrun.datafiles import evaluate, toml_beside
from dsrun.findings.finding import Finding, Level, finding_of, has_errors, text_of, worst_first
from dsrun.messages import suggestion
from dsrun.slurm.cluster.cluster_facts import NO_LIMIT, ClusterFacts, Partition, QosLimits, UserAccounts
from dsrun.slurm.render import notation
from dsrun.slurm.render.environment import gpus_of
from dsrun.slurm.render.options import SlurmSpec
from dsrun.slurm.resources import JobRequest, check_resources, feature_names, hosts, request


def check(spec: SlurmSpec, facts: ClusterFacts) -> list[Finding]:
    """What is wrong with `spec` on this cluster, the worst first; [] where it fits.

    Of several partitions one that fits is enough: what the others lack are warnings then, but for the limits of each,
    where SLURM refuses a job that is beyond one of them."""
    wanted = request(spec)
    found = [*_names(wanted, facts), *_array(wanted, facts), *_partition_list(wanted, facts)]
    each = {name: _in_partition(wanted, facts, name) for name in wanted.partitions or (None,)}
    some_fit = any(not has_errors(findings) for findings in each.values())
    for name, findings in each.items():
        binding = _binding(wanted, facts.partition(name)) if facts.all_limits else ()
        for one in findings:
            milder = some_fit and one.level == "error" and one.code not in binding
            found.append(replace(one, level="warning") if milder else one)
    return worst_first(dict.fromkeys(found))


def _binding(wanted: JobRequest, partition: Partition | None) -> list[str]:
    """The codes of what is against a limit of the partition, and no matter of its nodes."""
    if partition is None:
        return ["slurm_partition_unknown"]
    names = {"partition": partition, "spec": wanted.spec, "memory": wanted.memory or 0, "count": len(partition.nodes)}
    return [code for code, when in toml_beside(__file__)["limits"].items() if evaluate(when, names)]


def _names(wanted: JobRequest, facts: ClusterFacts) -> Iterator[Finding]:
    """Names that the cluster does not have."""
    for flag, text in (("--nodelist", wanted.spec.nodelist), ("--exclude", wanted.spec.exclude)):
        unknown = [name for name in hosts(text) if name not in facts.by_name]
        if unknown:
            fix = suggestion(unknown[0], facts.by_name) if len(facts.nodes) <= 1000 else None
            yield finding_of("slurm_node_unknown", where=flag, unknown=", ".join(unknown[:5]), fix=fix)
    features = {feature for node in facts.nodes for feature in node.features}
    for name in feature_names(wanted.spec.constraint or ""):
        if name not in features:
            yield finding_of("slurm_feature_unknown", where="--constraint", name=name, fix=suggestion(name, features))
    asked = wanted.spec.reservation
    if asked and not set(asked.split(",")) <= set(facts.reservations):
        fix = suggestion(asked, facts.reservations)
        yield finding_of("slurm_reservation_unknown", where="--reservation", reservation=asked, fix=fix)
    if wanted.spec.licenses and facts.licenses is not None:
        yield from _licenses(wanted.spec.licenses, facts.licenses)


def _licenses(text: str, known: Mapping[str, int]) -> Iterator[Finding]:
    """What `text`, as --licenses has it, asks for beyond `known`, the totals by name.

    SLURM's words for all of this are "Invalid license specification"; it tells upper from lower case, and a name
    includes its server. Of alternatives (`a|b`, since 24.11) one that is there is enough."""
    found = [list(_license_list(each, known)) for each in text.split("|")]
    if all(found):
        yield from found[0]


def _license_list(text: str, known: Mapping[str, int]) -> Iterator[Finding]:
    wanted: Counter[str] = Counter()
    for entry in re.split("[,;]", text):
        name, colon, count = entry.strip().partition(":")
        if not name or (colon and not re.fullmatch(r"[0-9]{1,9}", count)):
            yield finding_of("slurm_license_form", where="--licenses", entry=entry.strip())
            return
        wanted[name] += int(count or 1)
    for name, count in wanted.items():
        if name not in known:
            yield finding_of("slurm_license_unknown", where="--licenses", name=name, fix=suggestion(name, known))
        elif count > known[name]:
            yield finding_of("slurm_license_count", where="--licenses", count=count, name=name, total=known[name])


def _array(wanted: JobRequest, facts: ClusterFacts) -> Iterator[Finding]:
    # Of "0-9,20%4" the steps and the limit are not task numbers.
    numbers = re.findall(r"\d+", re.sub(r"[:%]\d+", "", wanted.spec.array or ""))
    highest = max(map(int, numbers), default=-1)
    if highest >= facts.max_array_size:
        most = facts.max_array_size
        yield finding_of("slurm_array_size", where="--array", highest=highest, max_array_size=most)


def _together(wanted: JobRequest, partition: Partition, facts: ClusterFacts) -> list[Partition]:
    """The partitions whose limits one job keeps: all that it names where SLURM wants that, else this one."""
    named = [each for name in wanted.partitions if (each := facts.partition(name))]
    return named if facts.all_limits and named else [partition]


def _in_partition(wanted: JobRequest, facts: ClusterFacts, name: str | None) -> list[Finding]:
    partition = facts.partition(name)
    if partition is None:
        known = [each.name for each in facts.partitions if not each.hidden]
        if name is None:
            return [finding_of("slurm_partition_missing", where="--partition", known=", ".join(known))]
        return [finding_of("slurm_partition_unknown", where="--partition", name=name, fix=suggestion(name, known))]
    found = [*_state(partition, facts), *_time(wanted, partition, facts), *_node_count(wanted, partition, facts)]
    if all(name in facts.by_name for name in hosts(wanted.spec.nodelist)):
        found += check_resources(wanted, partition, facts)
    return [*found, *_permissions(wanted, partition, facts)]


def _state(partition: Partition, facts: ClusterFacts) -> Iterator[Finding]:
    others = ", ".join(each.name for each in facts.partitions if each.is_up and not each.hidden and each.nodes)
    closed = partition.state in ("DRAIN", "INACTIVE")
    if closed or not partition.is_up:
        code = "slurm_partition_closed" if closed else "slurm_partition_down"
        yield finding_of(code, where="--partition", name=partition.name, state=partition.state, others=others)


def _time(wanted: JobRequest, partition: Partition, facts: ClusterFacts) -> Iterator[Finding]:
    limit = wanted.time
    if limit is not None and limit > partition.time_limit:
        asked, most = notation.clock(limit), notation.clock(partition.time_limit)
        allowed = notation.clock(min(each.time_limit for each in _together(wanted, partition, facts)))
        yield finding_of(
            "slurm_time_limit", where="--time", limit=asked, name=partition.name, time_limit=most, allowed=allowed
        )
    real = limit if limit is not None else (partition.time_default or partition.time_limit)
    if (lead := wanted.spec.signal_lead) is not None and lead >= real:
        yield finding_of("slurm_signal_lead", where="--signal-lead", lead=lead, real=notation.clock(real))
    if limit is None and real != NO_LIMIT:
        yield finding_of("slurm_time_default", where="--time", name=partition.name, real=notation.clock(real))


def _node_count(wanted: JobRequest, partition: Partition, facts: ClusterFacts) -> Iterator[Finding]:
    least, most = partition.min_nodes, partition.max_nodes
    if not least <= wanted.spec.nodes <= most:
        many = wanted.spec.nodes > most
        limit, together = most if many else least, _together(wanted, partition, facts)
        allowed = min(each.max_nodes for each in together) if many else max(each.min_nodes for each in together)
        yield finding_of(
            "slurm_node_limit",
            where="--nodes",
            name=partition.name,
            bound=text_of("slurm.at_most" if many else "slurm.at_least", limit=limit),
            nodes=wanted.spec.nodes,
            fix=text_of("slurm_node_limit.within", nodes=allowed),
        )
    named = hosts(wanted.spec.nodelist)
    if len(named) > wanted.spec.nodes:
        yield finding_of("slurm_nodelist_size", where="--nodelist", count=len(named), nodes=wanted.spec.nodes)
    strangers = [name for name in named if name in facts.by_name and name not in partition.nodes]
    if strangers:
        shown = ", ".join(strangers[:5])
        yield finding_of("slurm_node_elsewhere", where="--nodelist", strangers=shown, name=partition.name)


# What the partition and the accounting database let this user do: groups, accounts, QOS and their limits.


def _permissions(wanted: JobRequest, partition: Partition, facts: ClusterFacts) -> Iterator[Finding]:
    if partition.groups and facts.user != "root" and not set(partition.groups) & set(facts.groups):
        groups = ", ".join(partition.groups)
        yield finding_of("slurm_group", where="--partition", name=partition.name, groups=groups)
    known = facts.accounting
    if known is None:
        return
    account = wanted.spec.account or known.default_account
    yield from _account(wanted, known, partition, account)
    yield from _qos(wanted, known, partition, account)


def _partition_list(wanted: JobRequest, facts: ClusterFacts) -> Iterator[Finding]:
    """SLURM takes no list of partitions from an account that is bound to one of them."""
    known = facts.accounting
    account = wanted.spec.account or (known.default_account if known else None)
    if known is None or account is None or len(wanted.partitions) < 2:
        return
    bound = [each.partition for each in known.associations if each.partition and _same(account, (each.account,))]
    if "associations" in known.enforced and set(bound) & set(wanted.partitions):
        places = ", ".join(map(str, bound))
        first = wanted.partitions[0]
        yield finding_of("slurm_partitions", where="--partition", account=account, places=places, first=first)


def _same(name: str, others: tuple[str, ...]) -> bool:
    """SLURM takes accounts and QOS in any case."""
    return name.lower() in {each.lower() for each in others}


def _account(wanted: JobRequest, known: UserAccounts, partition: Partition, account: str | None) -> Iterator[Finding]:
    mine = tuple(dict.fromkeys(each.account for each in known.associations))
    if "associations" in known.enforced and not mine:
        yield finding_of("slurm_account_missing", where="--account")
        return
    if account is None:
        return
    if not _same(account, mine):
        if "associations" in known.enforced or wanted.spec.account:
            level: Level = "error" if "associations" in known.enforced else "warning"
            fix = suggestion(account, mine)
            yield finding_of("slurm_account_unknown", where="--account", level=level, account=account, fix=fix)
        return
    usable = [name for name in mine if _may(name, partition)]
    if not _may(account, partition):
        yield finding_of(
            "slurm_account_partition",
            where="--account",
            named=text_of(f"slurm_account_partition.{'named' if wanted.spec.account else 'default'}", account=account),
            name=partition.name,
            fix=f"--account {usable[0]}" if usable else None,
        )
    elif not _association(known, account, partition):
        places = [each.partition for each in known.associations if _same(account, (each.account,)) and each.partition]
        yield finding_of(
            "slurm_account_partition.bound",
            where="--account",
            account=account,
            places=", ".join(places),
            fix=f"--partition {places[0]}",
        )


def _may(account: str, partition: Partition) -> bool:
    if partition.accounts:
        return _same(account, partition.accounts)
    return not _same(account, partition.denied_accounts)


def _association(known: UserAccounts, account: str, partition: Partition) -> tuple[str, ...] | None:
    """The QOS of the association that counts: that for the partition, else that for all; None for none."""
    fitting = [each for each in known.associations if _same(account, (each.account,))]
    for place in (partition.name, None):
        for each in fitting:
            if each.partition == place:
                return (*each.qos, *((each.default_qos,) if each.default_qos else ())) or ("",)
    return None


def _qos(wanted: JobRequest, known: UserAccounts, partition: Partition, account: str | None) -> Iterator[Finding]:
    if wanted.spec.qos is None:
        return
    quality = next((each for each in known.qualities if _same(wanted.spec.qos, (each.name,))), None)
    if quality is None:
        fix = suggestion(wanted.spec.qos, (each.name for each in known.qualities))
        # SLURM takes any name where it enforces none.
        level: Level = "error" if known.enforced else "warning"
        yield finding_of("slurm_qos_unknown", where="--qos", level=level, qos=wanted.spec.qos, fix=fix)
        return
    mine = _association(known, account, partition) if account else None
    if mine and "qos" in known.enforced and not _same(quality.name, mine):
        yield finding_of(
            "slurm_qos_account", where="--qos", account=account, qos=quality.name, name=partition.name, usable=mine[0]
        )
    elif (partition.qos and not _same(quality.name, partition.qos)) or _same(quality.name, partition.denied_qos):
        other = f"--qos {partition.qos[0]}" if partition.qos else None
        yield finding_of("slurm_qos_partition", where="--qos", name=partition.name, qos=quality.name, fix=other)
    if "limits" in known.enforced:
        yield from _limits(wanted, quality)


def _limits(wanted: JobRequest, quality: QosLimits) -> Iterator[Finding]:
    if wanted.time is not None and wanted.time > quality.time_limit:
        time, limit = notation.clock(wanted.time), notation.clock(quality.time_limit)
        yield finding_of("slurm_qos_time", where="--time", time=time, name=quality.name, limit=limit)
    gpus = gpus_of(wanted.spec) * wanted.spec.nodes
    if gpus > quality.max_gpus:
        yield finding_of("slurm_qos_gpus", where="--qos", gpus=gpus, name=quality.name, max_gpus=quality.max_gpus)
