"""The edge of this room: asks the cluster and reads its answers into ClusterFacts."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from dsrun.errors import MissingError, ToolError
from dsrun.slurm import units
from dsrun.slurm.cluster import query
from dsrun.slurm.cluster.facts import NO_LIMIT, Accounting, Association, ClusterFacts, Quality, read_facts
from dsrun.slurm.cluster.records import settings


def look(*, with_accounting: bool = True) -> ClusterFacts:
    """The cluster as it is now, in about six short queries.

    An accounting database that does not answer, reservations and licences that cannot be read are left out: they are
    no reason not to look at the rest. Raises MissingError where there is no SLURM, and ToolError when the controller
    does not answer.
    """
    config = query.config()
    with ThreadPoolExecutor() as pool:  # each of sacctmgr's answers takes a fifth of a second
        accounting = pool.submit(_accounting, settings(config)) if with_accounting else None
        partitions, nodes = pool.submit(query.partitions), pool.submit(query.nodes)
        reservations = pool.submit(_or_nothing, query.reservations)
        licenses = pool.submit(_or_nothing, query.licenses)
    return read_facts(
        partitions=partitions.result(),
        nodes=nodes.result(),
        config=config,
        accounting=accounting.result() if accounting else None,
        user=query.user(),
        groups=query.groups(),
        reservations=reservations.result(),
        licenses=licenses.result(),
    )


def look_if_there(
    *, with_accounting: bool = True, say: Callable[[str], None] | None = None
) -> ClusterFacts | None:
    """As `look`, but None where there is no SLURM.

    With `say` also where it does not answer: `say` is told so, for what can be done without it.
    """
    try:
        return look(with_accounting=with_accounting)
    except MissingError:
        return None
    except ToolError as error:
        if say is None:
            raise
        say(str(error))
        return None


def _or_nothing(query: Callable[[], str]) -> str:
    try:
        return query()
    except ToolError:
        return ""


def _accounting(config: dict[str, str]) -> Accounting | None:
    if not config.get("AccountingStorageType", "").endswith("slurmdbd"):
        return None
    try:
        return read_accounting(
            associations=query.associations(config.get("ClusterName", "")),
            qualities=query.qualities(),
            enforced=config.get("AccountingStorageEnforce", "none"),
        )
    except (ToolError, MissingError):
        return None


def read_accounting(*, associations: str, qualities: str, enforced: str) -> Accounting:
    """What sacctmgr printed, as `dsrun.slurm.cluster.query` asks for it."""
    rows = _rows(associations, 5)
    return Accounting(
        associations=tuple(
            Association(
                account=account,
                partition=partition or None,
                qos=tuple(word for word in qos.split(",") if word),
                default_qos=default_qos or None,
            )
            for _, account, partition, qos, default_qos in rows
        ),
        default_account=rows[0][0] or None if rows else None,
        qualities=tuple(
            Quality(name=row[0], time_limit=units.seconds(row[1]) or NO_LIMIT, max_gpus=_gpus(row[2]))
            for row in _rows(qualities, 3)
        ),
        enforced=frozenset(word.strip() for word in enforced.split(",") if word.strip() not in ("", "none")),
    )


def _rows(text: str, width: int) -> list[list[str]]:
    rows = [line.split("|") for line in text.splitlines() if line]
    return [row for row in rows if len(row) == width]


def _gpus(tres: str) -> float:
    """The limit gres/gpu=N of a TRES list; of typed GPUs alone it says nothing."""
    found = dict(word.split("=", 1) for word in tres.split(",") if "=" in word)
    count = found.get("gres/gpu", "")
    return float(count) if count.isdecimal() else NO_LIMIT
