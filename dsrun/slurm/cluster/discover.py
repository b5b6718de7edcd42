"""Queries the cluster and parses its answers into ClusterFacts."""

import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from dsrun.datafiles import evaluate, toml_beside
from dsrun.errors import MissingError, ToolError
from dsrun.hardware.gpu_facts import GpuModel, lookup, memory_sizes
from dsrun.hardware.gres import GpuGres, parse_gres
from dsrun.slurm.cluster.cluster_facts import (
    NO_LIMIT,
    AccountAssociation,
    ClusterFacts,
    GpuGroup,
    Partition,
    QosLimits,
    SlurmNode,
    UserAccounts,
)
from dsrun.slurm.render import notation
from dsrun.system import slurm
from dsrun.system.hostlist import expand_hosts
from dsrun.system.slurm import names, oneliners, settings, value

# What an administrator writes about a node comes last in its record.
_WRITTEN = frozenset({"Reason", "Comment", "Extra"})
# A MIG slice by its profile, 3g.20gb: the number before "gb" is its memory.
_SLICE = re.compile(r"(?:^|[_.:-])\d+g\.(\d+)gb", re.IGNORECASE)
_NOTATIONS: Mapping[str, Callable[[str], float | None]] = {"mib": notation.mib, "seconds": notation.seconds}


def discover(*, with_accounting: bool = True) -> ClusterFacts:
    """The cluster as it is now, in about six short queries.

    An accounting database that does not answer, reservations and licences that cannot be read are left out: they are
    no reason not to look at the rest. Raises MissingError where there is no SLURM, and ToolError when the controller
    does not answer."""
    config = slurm.run_tool(["scontrol", "show", "config"])
    with ThreadPoolExecutor() as pool:  # each of sacctmgr's answers takes a fifth of a second
        accounting = pool.submit(_accounting, settings(config)) if with_accounting else None
        queries = {
            "partitions": pool.submit(slurm.show, "partition", "--all"),  # hidden ones too
            "nodes": pool.submit(slurm.show, "node", "--all", "--details"),  # with GresUsed
            "reservations": pool.submit(_or_nothing, "reservation"),
            "licenses": pool.submit(_or_nothing, "licenses"),
        }
    texts = {name: query.result() for name, query in queries.items()}
    known = accounting.result() if accounting else None
    return read_facts(**texts, config=config, accounting=known, user=slurm.user(), groups=slurm.groups())


def discover_if_any(notify: Callable[[str], None]) -> ClusterFacts | None:
    """As `discover`, but None where there is no SLURM, and where it does not answer: `notify` gets the reason."""
    try:
        return discover()
    except MissingError:
        return None
    except ToolError as error:
        notify(str(error))
        return None


def _or_nothing(kind: str) -> str:
    try:
        return slurm.show(kind)
    except ToolError:
        return ""


def _accounting(config: dict[str, str]) -> UserAccounts | None:
    if not config.get("AccountingStorageType", "").endswith("slurmdbd"):
        return None
    try:
        return read_accounting(
            associations=slurm.associations(config.get("ClusterName", "")),
            qualities=slurm.qualities(),
            enforced=config.get("AccountingStorageEnforce", "none"),
        )
    except (ToolError, MissingError):
        return None


def read_accounting(*, associations: str, qualities: str, enforced: str) -> UserAccounts:
    """The output of sacctmgr with the columns of `dsrun.system.slurm`."""
    rows = _rows(associations, 5)
    return UserAccounts(
        associations=tuple(
            AccountAssociation(account, partition or None, tuple(filter(None, qos.split(","))), default_qos or None)
            for _, account, partition, qos, default_qos in rows
        ),
        default_account=rows[0][0] or None if rows else None,
        qualities=tuple(
            QosLimits(name, notation.seconds(time) or NO_LIMIT, _gpu_limit(tres))
            for name, time, tres in _rows(qualities, 3)
        ),
        enforced=frozenset(map(str.strip, enforced.split(","))) - {"", "none"},
    )


def _rows(text: str, width: int) -> list[list[str]]:
    rows = [line.split("|") for line in text.splitlines() if line]
    return [row for row in rows if len(row) == width]


def _gpu_limit(tres: str) -> float:
    """The limit gres/gpu=N of a TRES list; of typed GPUs alone it says nothing."""
    found = dict(word.split("=", 1) for word in tres.split(",") if "=" in word)
    count = found.get("gres/gpu", "")
    return float(count) if count.isdecimal() else NO_LIMIT


def read_facts(
    *,
    partitions: str,
    nodes: str,
    config: str,
    accounting: UserAccounts | None = None,
    user: str = "",
    groups: tuple[str, ...] = (),
    reservations: str = "",
    licenses: str = "",
) -> ClusterFacts:
    """The facts in the output of `dsrun.system.slurm`'s queries."""
    known = settings(config)
    return ClusterFacts(
        **_read("cluster", known),
        partitions=tuple(_partition(each) for each in oneliners(partitions) if "PartitionName" in each),
        nodes=tuple(_node(each) for each in oneliners(nodes, _WRITTEN) if "NodeName" in each),
        user=user,
        groups=groups,
        accounting=accounting,
        reservations=tuple(each["ReservationName"] for each in oneliners(reservations) if "ReservationName" in each),
        licenses=_licenses(licenses),
    )


def _read(table: str, record: dict[str, str]) -> dict[str, Any]:
    """The fields of a table of discover.toml for a record of scontrol."""
    known: dict[str, Any] = {each.__name__: partial(each, record) for each in (_number, names, value)}
    known |= {name: lambda key, read=read: read(record.get(key, "")) for name, read in _NOTATIONS.items()}
    known |= {"get": record.get, "int": int, "expand_hosts": expand_hosts, "NO_LIMIT": NO_LIMIT}
    return {name: evaluate(text, known) for name, text in toml_beside(__file__)[table].items()}


def _partition(record: dict[str, str]) -> Partition:
    defaults = dict(word.split("=", 1) for word in names(record, "JobDefaults") if "=" in word)
    sizes = {key: record.get(key, "") for key in ("DefMemPerNode", "DefMemPerCPU")}
    defaults |= {key: size for key, size in sizes.items() if notation.mib(size) is not None}
    return Partition(**_read("partition", record), job_defaults=defaults)


def _licenses(text: str) -> Mapping[str, int] | None:
    """Totals by name; {} for "No licenses configured", None for no answer."""
    records = [each for each in oneliners(text) if "LicenseName" in each]
    return {each["LicenseName"]: int(_number(each, "Total")) for each in records} if text.strip() else None


def _node(record: dict[str, str]) -> SlurmNode:
    features = names(record, "ActiveFeatures") or names(record, "AvailableFeatures")
    gpus = gpu_groups(record.get("Gres", ""), record.get("GresUsed", ""), features)
    resources = tuple(dict.fromkeys(word.split(":")[0] for word in names(record, "Gres")))
    return SlurmNode(**_read("node", record), features=features, gpus=gpus, resources=resources)


def _number(record: Mapping[str, str], key: str, default: float = 0) -> float:
    text = record.get(key, "")
    return float(text) if text.isdecimal() else default


def gpu_groups(gres: str, used: str, features: tuple[str, ...] = ()) -> tuple[GpuGroup, ...]:
    """The GPUs of a node from its Gres and GresUsed in `scontrol --details show node`."""
    busy: dict[str | None, int] = {}
    for each in parse_gres(used):
        busy[each.type] = busy.get(each.type, 0) + each.count
    kinds = [each for each in parse_gres(gres) if each.count]
    if len(kinds) == 1 and kinds[0].type not in busy:  # GresUsed without types
        busy = {kinds[0].type: sum(busy.values())}
    # What a feature says of a node with several kinds may be meant for any of them.
    alike = len([each for each in kinds if not _SLICE.search(each.type or "")]) <= 1
    featured = _featured(features) if alike else None
    return tuple(_group(each, busy.get(each.type, 0), featured) for each in kinds)


def _group(gres: GpuGres, busy: int, featured: GpuModel | None) -> GpuGroup:
    """What the type says; an untyped GPU, or one with a type of the site's own, may be named by a feature."""
    sliced = _SLICE.search(gres.type or "")
    model = lookup((gres.type or "")[: sliced.start() if sliced else None]) or featured
    memory: tuple[int, ...] = (int(sliced[1]),) if sliced else tuple(sorted(set(memory_sizes(model)))) if model else ()
    return GpuGroup(
        type=gres.type,
        count=gres.count,
        busy=min(busy, gres.count),
        model=model.name if model else None,
        capability=model.capability if model else None,
        memory=memory,
    )


def _featured(features: tuple[str, ...]) -> GpuModel | None:
    """The one GPU that the features name; None for none and for several."""
    found = {model.name: model for name in features if (model := lookup(name))}
    return next(iter(found.values())) if len(found) == 1 else None
