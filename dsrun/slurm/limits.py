"""Whether this user may: accounts, QOS and groups."""

from __future__ import annotations

from collections.abc import Iterator

from dsrun.findings import Finding, nearest
from dsrun.slurm import units
from dsrun.slurm.cluster.facts import Accounting, ClusterFacts, Partition, Qos
from dsrun.slurm.request import Request, error


def check_limits(wanted: Request, partition: Partition, facts: ClusterFacts) -> Iterator[Finding]:
    """What the partition and the accounting database do not let this user do."""
    if partition.groups and facts.user != "root" and not set(partition.groups) & set(facts.groups):
        yield error(
            "group", f"partition {partition.name} is for the groups {', '.join(partition.groups)}, and you are in none",
            fix="take another --partition, or ask to be let in", where="--partition",
        )  # fmt: skip
    known = facts.accounting
    if known is None:
        return
    account = wanted.account or known.default_account
    yield from _account(wanted, known, partition, account)
    yield from _qos(wanted, known, partition, account)


def check_partition_list(wanted: Request, facts: ClusterFacts) -> Iterator[Finding]:
    """SLURM takes no list of partitions from an account that is bound to one of them."""
    known = facts.accounting
    account = wanted.account or (known.default_account if known else None)
    if known is None or account is None or len(wanted.partitions) < 2:
        return
    bound = [each.partition for each in known.associations if each.partition and _same(account, (each.account,))]
    if "associations" in known.enforced and set(bound) & set(wanted.partitions):
        yield error(
            "partitions", f"account {account} is bound to a partition ({', '.join(map(str, bound))}), and SLURM takes "
            "no list of partitions from it", fix=f"--partition {wanted.partitions[0]}", where="--partition",
        )  # fmt: skip


def _same(name: str, others: tuple[str, ...]) -> bool:
    """SLURM takes accounts and QOS in any case."""
    return name.lower() in {each.lower() for each in others}


def _account(wanted: Request, known: Accounting, partition: Partition, account: str | None) -> Iterator[Finding]:
    mine = tuple(dict.fromkeys(each.account for each in known.associations))
    if "associations" in known.enforced and not mine:
        yield error(
            "account_missing", "you have no account on this cluster, and it takes jobs on accounts only",
            fix="ask its administrators for one", where="--account",
        )  # fmt: skip
        return
    if account is None:
        return
    if not _same(account, mine):
        if "associations" in known.enforced or wanted.account:
            yield error(
                "account_unknown",
                f"{account!r} is none of your accounts",
                fix=nearest(account, mine),
                where="--account",
            )
        return
    usable = [name for name in mine if _may(name, partition)]
    if not _may(account, partition):
        named = f"account {account}" + ("" if wanted.account else " (your default)")
        yield error(
            "account_partition", f"{named} may not use partition {partition.name}: its jobs would never start",
            fix=f"--account {usable[0]}" if usable else "take another --partition", where="--account",
        )  # fmt: skip
    elif not _association(known, account, partition):
        places = [each.partition for each in known.associations if _same(account, (each.account,)) and each.partition]
        yield error(
            "account_partition", f"you may use account {account} in {', '.join(places)} only",
            fix=f"--partition {places[0]}", where="--account",
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
    if wanted.qos is None:
        return
    quality = next((each for each in known.qualities if _same(wanted.qos, (each.name,))), None)
    if quality is None:
        names = (each.name for each in known.qualities)
        yield error("qos_unknown", f"there is no QOS {wanted.qos!r}", fix=nearest(wanted.qos, names), where="--qos")
        return
    mine = _association(known, account, partition) if account else None
    if mine and "qos" in known.enforced and not _same(quality.name, mine):
        yield error(
            "qos_account", f"account {account} may not use QOS {quality.name} in partition {partition.name}",
            fix=f"--qos {next(iter(mine))}", where="--qos",
        )  # fmt: skip
    elif (partition.qos and not _same(quality.name, partition.qos)) or _same(quality.name, partition.denied_qos):
        yield error(
            "qos_partition", f"partition {partition.name} does not take QOS {quality.name}",
            fix=f"--qos {partition.qos[0]}" if partition.qos else "take another --qos", where="--qos",
        )  # fmt: skip
    if "limits" in known.enforced:
        yield from _limits(wanted, quality)


def _limits(wanted: Request, quality: Qos) -> Iterator[Finding]:
    if wanted.time is not None and wanted.time > quality.time_limit:
        yield error(
            "qos_time", f"{units.clock(wanted.time)} is above the limit of QOS {quality.name}",
            fix=f"--time {units.clock(quality.time_limit)}", where="--time",
        )  # fmt: skip
    gpus = wanted.gpu_count * wanted.nodes
    if gpus > quality.max_gpus:
        yield error(
            "qos_gpus", f"{gpus} GPUs are more than a job of QOS {quality.name} may have, {quality.max_gpus:.0f}",
            fix="ask for fewer, or take another --qos", where="--qos",
        )  # fmt: skip
