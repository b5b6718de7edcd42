"""What the partition and the accounting database let this user do: groups, accounts, QOS and their limits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dsrun.findings.finding import Finding
from dsrun.messages import Message, suggestion
from dsrun.slurm.cluster.facts import Accounting, ClusterFacts, Partition, Qos
from dsrun.slurm.render import notation
from dsrun.slurm.render.environment import gpus_of
from dsrun.slurm.request import Request, error


def check_permissions(wanted: Request, partition: Partition, facts: ClusterFacts) -> Iterator[Finding]:
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


def check_partition_list(wanted: Request, facts: ClusterFacts) -> Iterator[Finding]:
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
                "SLURM takes no list of partitions from account {account}: it is bound to {places}",
                account=account,
                places=", ".join(map(str, bound)),
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
                suggestion(account, mine),
                "--account",
            )
            yield found if "associations" in known.enforced else replace(found, level="warning")
        return
    usable = [name for name in mine if _may(name, partition)]
    if not _may(account, partition):
        named = Message(
            "account {account}" if wanted.spec.account else "account {account} (your default)", account=account
        )
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
            suggestion(wanted.spec.qos, names),
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
                "account {account} may not use QOS {qos} in partition {name}",
                account=account,
                qos=quality.name,
                name=partition.name,
            ),
            f"--qos {next(iter(mine))}",
            "--qos",
        )
    elif (partition.qos and not _same(quality.name, partition.qos)) or _same(quality.name, partition.denied_qos):
        yield error(
            "qos_partition",
            Message("partition {name} does not take QOS {qos}", name=partition.name, qos=quality.name),
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
