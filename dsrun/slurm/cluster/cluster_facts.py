"""ClusterFacts: what a SLURM cluster has and what it allows, read from what its own programs print."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

# States and flags in which a node takes no job, as scontrol joins them with "+" (slurm.h, scontrol(1)).
_UNUSABLE = frozenset(
    {"DOWN", "DRAIN", "DRAINED", "DRAINING", "ERROR", "FAIL", "FAILING", "FUTURE", "INVAL", "INVALID_REG"}
    | {"MAINT", "NO_RESPOND", "NOT_RESPONDING", "POWERING_DOWN", "REBOOT_ISSUED", "UNKNOWN"}
)
NO_LIMIT = float("inf")


@dataclass(frozen=True, kw_only=True)
class GpuGroup:
    """GPUs of one type on one node; `type` as GRES spells it, None where it is untyped.

    `model` is the GPU's name, `capability` its compute capability and `memory` the GiB of one, several where the name
    fits several products. They are None and () where neither the type nor the node's features tell."""

    type: str | None
    count: int
    busy: int
    model: str | None
    capability: tuple[int, int] | None
    memory: tuple[int, ...]

    @property
    def name(self) -> str:
        """How to call it: its type, else the model that a feature of the node names, else "gpu"."""
        return self.type or self.model or "gpu"


@dataclass(frozen=True, kw_only=True)
class Partition:
    """One partition. Times in seconds, memory in MiB, infinity for no limit; None where nothing is said.

    `accounts`, `qos` and `groups` are the only ones that may use it, () where all may; `denied_accounts` and
    `denied_qos` may not. `time_default` is the limit of a job that asks for none."""

    name: str
    state: str
    default: bool
    nodes: tuple[str, ...]
    time_limit: float
    time_default: float | None
    min_nodes: int
    max_nodes: float
    max_cpus_per_node: float
    max_memory_per_node: float
    accounts: tuple[str, ...] = ()
    denied_accounts: tuple[str, ...] = ()
    qos: tuple[str, ...] = ()
    denied_qos: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    hidden: bool = False
    job_defaults: Mapping[str, str] = field(default_factory=dict)
    preempt_mode: str = "OFF"

    @property
    def is_up(self) -> bool:
        """Whether its jobs start."""
        return self.state == "UP"


@dataclass(frozen=True, kw_only=True)
class SlurmNode:
    """One node: cores as SLURM schedules them (hardware threads, where it counts these), memory in MiB.

    `memory` is what jobs may have of it; `resources` are the names of its generic resources. `state` is scontrol's,
    "IDLE+DRAIN"; `reason` says why it is down."""

    name: str
    state: str
    reason: str
    partitions: tuple[str, ...]
    features: tuple[str, ...]
    gpus: tuple[GpuGroup, ...]
    resources: tuple[str, ...]
    cores: int
    cores_busy: int
    memory: float
    memory_busy: float

    @property
    def is_usable(self) -> bool:
        """Whether it takes jobs, now or when others end; a node of a cloud that is switched off does."""
        # The signs are what SLURM appends to a state (sinfo(1), NODE STATE CODES).
        states = self.state.rstrip("*~#!%$@^-+").replace("*", "").split("+")
        return not _UNUSABLE.intersection(states)

    @property
    def gpu_count(self) -> int:
        return sum(group.count for group in self.gpus)

    @property
    def gpus_free(self) -> int:
        """GPUs that no job holds; 0 on a node that takes none."""
        return sum(group.count - group.busy for group in self.gpus) if self.is_usable else 0

    @property
    def cores_free(self) -> int:
        """Cores that no job holds; 0 on a node that takes none."""
        return self.cores - self.cores_busy if self.is_usable else 0


NodeTest = Callable[[SlurmNode], bool]


class AccountAssociation(NamedTuple):
    """That this user may use `account`, in `partition` only where one is given, with one of `qos`."""

    account: str
    partition: str | None
    qos: tuple[str, ...]
    default_qos: str | None


class QosLimits(NamedTuple):
    """A QOS: its longest time in seconds and most GPUs of one job, infinity for no limit."""

    name: str
    time_limit: float
    max_gpus: float


@dataclass(frozen=True, kw_only=True)
class UserAccounts:
    """This user in the accounting database; `enforced` holds the words of AccountingStorageEnforce in slurm.conf."""

    associations: tuple[AccountAssociation, ...]
    default_account: str | None
    qualities: tuple[QosLimits, ...]
    enforced: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class ClusterFacts:
    """A cluster at one moment; `accounting` None where it keeps none, or does not answer.

    `reservations` are their names, `licenses` the totals by name, None where SLURM did not say. `all_limits`: sbatch
    takes a list of partitions only if the job keeps the limits of each (EnforcePartLimits=ALL)."""

    name: str
    version: str
    partitions: tuple[Partition, ...]
    nodes: tuple[SlurmNode, ...]
    max_array_size: int
    memory_per_core: float | None = None
    user: str = ""
    groups: tuple[str, ...] = ()
    accounting: UserAccounts | None = None
    reservations: tuple[str, ...] = ()
    licenses: Mapping[str, int] | None = None
    all_limits: bool = False

    @cached_property
    def by_name(self) -> Mapping[str, SlurmNode]:
        return {node.name: node for node in self.nodes}

    def partition(self, name: str | None) -> Partition | None:
        """The partition called `name`, the default one for None; None where it does not exist."""
        return next((each for each in self.partitions if (each.default if name is None else each.name == name)), None)

    def nodes_of(self, partition: Partition) -> tuple[SlurmNode, ...]:
        """The partition's nodes, whatever their state."""
        return tuple(self.by_name[name] for name in partition.nodes if name in self.by_name)

    def usual_gpus(self, partition: str | None = None, fits: NodeTest | None = None) -> int | None:
        """GPUs on most nodes with GPUs of a partition that fit (of equals the smaller number); None for none at all."""
        found = self.partition(partition)
        counts = sorted(node.gpu_count for node in filter(fits, self.nodes_of(found)) if node.gpus) if found else []
        return max(counts, key=counts.count, default=None)

    def cores_per_gpu(self, partition: str | None = None, fits: NodeTest | None = None) -> int | None:
        """Cores that go with one GPU on the poorest node with GPUs of a partition that fits; None without GPUs.

        The poorest, for a request for more would leave its last GPUs unusable."""
        found = self.partition(partition)
        rich = [node for node in filter(fits, self.nodes_of(found)) if node.gpu_count] if found else []
        cap = found.max_cpus_per_node if found else NO_LIMIT
        shares = [int(min(node.cores, cap)) // node.gpu_count for node in rich]
        return max(1, min(shares)) if shares else None
