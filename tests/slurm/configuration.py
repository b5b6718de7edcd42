"""The files that a test cluster is configured by, as text. Pure: nothing is read or written here."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CONTROLLER = "ctl"
LOGIN = "login"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a cluster is like.

    `gpus` has one "TYPE:COUNT" or "none" per node, the last repeats; `cpus` and `memory` (MiB) are what each node
    claims to have. A lost node is noticed after about `node_timeout` seconds. `accounting` starts slurmdbd and a
    database; `cgroup` holds jobs to the memory and devices they asked for (cgroup v1 hosts). `lines` are more lines of
    slurm.conf. `users` become accounts on the machines, numbered from 20001 and known nowhere else.
    """

    nodes: int = 2
    gpus: tuple[str, ...] = ()
    cpus: int = 16
    memory: int = 64000
    node_timeout: int = 10
    accounting: bool = False
    cgroup: bool = False
    lines: tuple[str, ...] = ()
    users: tuple[str, ...] = ("ada", "ben")

    @property
    def node_names(self) -> list[str]:
        return [f"node{number}" for number in range(1, self.nodes + 1)]

    @property
    def user_ids(self) -> dict[str, int]:
        return {user: 20001 + place for place, user in enumerate(self.users)}

    def gpu(self, place: int) -> tuple[str, int]:
        """Type and number of the GPUs of the node at `place` (from 0); ("", 0) for none."""
        if not self.gpus:
            return "", 0
        kind, _, count = self.gpus[min(place, len(self.gpus) - 1)].partition(":")
        return (kind, int(count)) if count else ("", 0)


@dataclass(frozen=True)
class Names:
    """What a cluster is called outside its machines, derived from its folder so that two never share anything."""

    switch: str
    cable: str
    network: str

    @classmethod
    def of(cls, root: Path) -> Names:
        """Interface names have at most 15 characters; the network is a 10.64.0.0/10 address without its last number."""
        digest = hashlib.sha256(str(root).encode()).digest()
        key = digest.hex()[:8]
        return cls(f"sw-{key}", f"c{key}", f"10.{64 + digest[4] % 64}.{digest[5]}")


def addresses(options: Options, root: Path) -> dict[str, str]:
    """Every machine's address; the host itself is .254."""
    last = {CONTROLLER: 253, LOGIN: 252} | {name: place + 1 for place, name in enumerate(options.node_names)}
    return {name: f"{Names.of(root).network}.{number}" for name, number in last.items()}


def slurm_conf(options: Options, root: Path) -> str:
    """slurm.conf: everything under `root`, and waiting times fit for tests."""
    where = addresses(options, root)
    group = "cgroup" if options.cgroup else ""
    return "\n".join(
        [
            "ClusterName=test",
            f"SlurmctldHost={CONTROLLER}({where[CONTROLLER]})",
            "SlurmUser=root",
            "AuthType=auth/munge",
            "CredType=cred/munge",
            # A requeued job waits until its old credential has expired, two minutes unless told. A busy machine needs
            # seconds from the making of a credential to its use.
            f"AuthInfo=socket={root}/run/munge.sock,cred_expire=10",
            f"StateSaveLocation={root}/state",
            f"SlurmdSpoolDir={root}/spool/%n",
            f"SlurmctldPidFile={root}/run/slurmctld.pid",
            f"SlurmdPidFile={root}/run/slurmd-%n.pid",
            f"SlurmctldLogFile={root}/log/slurmctld.log",
            f"SlurmdLogFile={root}/log/slurmd-%n.log",
            "MailProg=/bin/true",
            f"ProctrackType=proctrack/{group or 'linuxproc'}",
            f"TaskPlugin=task/{group or 'none'}",
            "SwitchType=switch/none",
            "MpiDefault=none",
            # Believe the numbers below, not what the node counts.
            "SlurmdParameters=config_overrides",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_CPU_Memory",
            "DefMemPerCPU=1000",
            "PriorityType=priority/basic",
            "SchedulerType=sched/backfill",
            "SchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_interval=2,sched_min_interval=20000",
            "GresTypes=gpu",
            f"SlurmdTimeout={options.node_timeout}",
            "SlurmctldTimeout=10",
            "MessageTimeout=10",
            "TCPTimeout=1",
            "BatchStartTimeout=10",
            "KillWait=5",
            # A step that ends while the controller is away tells it a minute later. If its job is requeued before, it
            # would be taken for unkillable, and the node be drained for good.
            "UnkillableStepTimeout=90",
            "InactiveLimit=0",
            # scontrol tells of finished jobs for a day.
            "MinJobAge=86400",
            # A node that comes back is used again.
            "ReturnToService=2",
            "JobRequeue=1",
            "JobAcctGatherType=jobacct_gather/linux",
            "JobAcctGatherFrequency=5",
            *_accounting(options, root),
            *_nodes(options, root),
            "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP",
            *options.lines,
            "",
        ]
    )


def _accounting(options: Options, root: Path) -> list[str]:
    if not options.accounting:
        return ["AccountingStorageType=accounting_storage/none"]
    return [
        "AccountingStorageType=accounting_storage/slurmdbd",
        f"AccountingStorageHost={addresses(options, root)[CONTROLLER]}",
        # With munge the "password" is the socket's path.
        f"AccountingStoragePass={root}/run/munge.sock",
        "AccountingStorageTRES=gres/gpu",
    ]


def _nodes(options: Options, root: Path) -> list[str]:
    where = addresses(options, root)
    lines = []
    for place, name in enumerate(options.node_names):
        kind, count = options.gpu(place)
        gres = f" Gres=gpu:{kind}:{count}" if count else ""
        size = f"CPUs={options.cpus} RealMemory={options.memory}"
        lines.append(f"NodeName={name} NodeAddr={where[name]} {size}{gres}")
    return lines


def slurmdbd_conf(options: Options, root: Path) -> str:
    address = addresses(options, root)[CONTROLLER]
    return "\n".join(
        [
            f"DbdHost={CONTROLLER}",
            f"DbdAddr={address}",
            "SlurmUser=root",
            "AuthType=auth/munge",
            f"AuthInfo=socket={root}/run/munge.sock",
            "StorageType=accounting_storage/mysql",
            f"StorageHost={address}",
            "StorageUser=root",
            "StorageLoc=slurm_acct_db",
            f"LogFile={root}/log/slurmdbd.log",
            f"PidFile={root}/run/slurmdbd.pid",
            "",
        ]
    )


def devices(options: Options, root: Path) -> dict[tuple[str, int], Path]:
    """The device file that stands for each GPU: a node that has only a count of them is refused by SLURM."""
    return {
        (name, number): root / "devices" / name / f"nvidia{number}"
        for place, name in enumerate(options.node_names)
        for number in range(options.gpu(place)[1])
    }


def gres_conf(options: Options, root: Path) -> str:
    kinds = {name: options.gpu(place)[0] for place, name in enumerate(options.node_names)}
    lines = [
        f"NodeName={name} Name=gpu Type={kinds[name]} File={file}" for (name, _), file in devices(options, root).items()
    ]
    return "\n".join(["AutoDetect=off", *lines, ""])


def cgroup_conf(options: Options) -> str:
    # Named outright, for slurmd looks for v1 or v2 itself even where it uses neither, and fails on a mixed host.
    limits = ["ConstrainRAMSpace=yes", "ConstrainDevices=yes"] if options.cgroup else []
    return "\n".join(["CgroupPlugin=cgroup/v1", *limits, ""])


def hosts(options: Options, root: Path) -> str:
    """/etc/hosts of the machines. torch looks its peers up under their addresses mapped to IPv6 as well."""
    lines = ["127.0.0.1 localhost"]
    for name, address in addresses(options, root).items():
        lines += [f"{address} {name}", f"::ffff:{address} {name}"]
    return "\n".join([*lines, ""])


def accounts(options: Options, root: Path, system: Sequence[str], *, groups: bool) -> str:
    """/etc/passwd, or with `groups` /etc/group, of the machines: the lines of the `system` and the cluster's users."""
    lines = [
        f"{user}:x:{number}:" if groups else f"{user}:x:{number}:{number}::{root}/home/{user}:/bin/bash"
        for user, number in options.user_ids.items()
    ]
    return "\n".join([*system, *lines, ""])
