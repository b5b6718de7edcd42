"""What the partition and the accounting database let this user do: groups, accounts, QOS and their limits."""

from collections.abc import Iterator

from dsrun.findings.finding import Finding, Level
from dsrun.findings.texts import finding_of, text_of
from dsrun.messages import suggestion
from dsrun.slurm.cluster.cluster_facts import ClusterFacts, Partition, QosLimits, UserAccounts
from dsrun.slurm.job_request import JobRequest
from dsrun.slurm.render import notation
from dsrun.slurm.render.environment import gpus_of


def check_permissions(wanted: JobRequest, partition: Partition, facts: ClusterFacts) -> Iterator[Finding]:
    if partition.groups and facts.user != "root" and not set(partition.groups) & set(facts.groups):
        groups = ", ".join(partition.groups)
        yield finding_of("slurm_group", where="--partition", name=partition.name, groups=groups)
    known = facts.accounting
    if known is None:
        return
    account = wanted.spec.account or known.default_account
    yield from _account(wanted, known, partition, account)
    yield from _qos(wanted, known, partition, account)


def check_partition_list(wanted: JobRequest, facts: ClusterFacts) -> Iterator[Finding]:
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
