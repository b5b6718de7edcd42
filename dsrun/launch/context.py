"""Where `dsrun launch` can be: on one machine, on one of several, or where it must start itself on the others; what a
supervisor there is asked to keep running, and what it says in the end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Self

from dsrun.errors import UsageError
from dsrun.launch.refusals import refuse
from dsrun.launch.supervisor.policy import RestartLimits
from dsrun.recipe.batch import BatchPlan
from dsrun.recipe.preflight.elastic import NodeRange
from dsrun.runs.attempts import RESUME_AUTO
from dsrun.system.env import is_count, shortened


@dataclass(frozen=True)
class LocalWorkers:
    """`workers` processes on this machine, one per GPU or, on CPU, sharing `cores`."""

    workers: int
    device: Literal["cuda", "cpu"]
    cores: int
    gpus: tuple[str, ...] = ()
    """The names of their GPUs, where known."""

    @property
    def where(self) -> str:
        """What they run on, for people."""
        if self.device == "cpu":
            return "the CPUs"
        counts = {name: self.gpus.count(name) for name in self.gpus}
        return " and ".join(f"{count} × {name}" for name, count in counts.items()) or "the GPUs"

    @property
    def threads(self) -> int:
        """Compute threads per worker on a CPU run."""
        return max(1, self.cores // self.workers)


def decide(*, nproc: int | None, visible_gpus: int, cores: int, use_cpu: bool) -> LocalWorkers:
    """One worker per visible GPU unless `nproc` says otherwise; on CPU `nproc` workers, by default one.

    Raises UsageError where more workers than visible GPUs are asked for, or 16 times as many as there are cores."""
    gpus = 0 if use_cpu else visible_gpus
    refuse("workers", nproc=nproc or 0, gpus=gpus, cores=cores)
    return LocalWorkers(nproc or gpus or 1, "cuda" if gpus else "cpu", cores)


LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """One training run, as one machine sees it.

    `program` are the words for torch.distributed.run: `train.py --flag`, or `--module NAME --flag`, or `--no-python
    ./program --flag`. `env` is the whole environment of agent and ranks. `port` None takes a free one for every
    attempt, which is only possible on one node. `name` is that of the model or program in messages. `external` is every
    program but dsrun.train: no fallback is applied to it and no sign of life expected of it. `hang_timeout` is in
    seconds, 0 for never, None for the default of `dsrun.launch.supervisor.watchdog`; `patience` the seconds a run that
    was asked to stop may take, None for as long as it beats. Without `signals` SIGTERM and SIGUSR1 are no requests to
    this run, but the program's own affair. `echo` shows what agent and ranks write, without `echoes_noise` not what
    libraries say of their own affairs. `imports` are modules that the ranks will load late, for the zygote to load
    early; one that is missing is skipped. `recipe` is the JSON by which the ranks of dsrun.train train
    (`dsrun.recipe.resolved`). `again` is the command that resumes a stopped run, with `--resume auto` added where
    `resume`, the value of --resume, is another and something was saved. `saved_batch` is the global batch of the
    checkpoint that the first attempt resumes from. With `elastic` the run goes on with fewer nodes. `batches` are those
    of the recipe by the number of nodes, before any fallback."""

    topology: LocalWorkers
    run: Path
    program: Sequence[str]
    env: Mapping[str, str]
    name: str = ""
    nnodes: int = 1
    node_rank: int = 0
    host: str = LOOPBACK
    port: int | None = None
    limits: RestartLimits = field(default_factory=RestartLimits)
    hang_timeout: float | None = None
    patience: float | None = None
    warm: bool = True
    external: bool = False
    signals: bool = True
    terminal_width: int | None = None
    echo: bool = False
    echoes_noise: bool = True
    imports: Sequence[str] = ()
    recipe: str | None = None
    again: str = "the same command"
    resume: str = RESUME_AUTO[0]
    saved_batch: int | None = None
    elastic: NodeRange | None = None
    batches: Mapping[int, BatchPlan] = field(default_factory=dict)

    def among(self, nodes: Sequence[int]) -> Self:
        """The job of an attempt in which only `nodes` take part."""
        return replace(self, nnodes=len(nodes), node_rank=nodes.index(self.node_rank))

    @property
    def resumes(self) -> bool:
        """Whether the same command resumes from what was saved."""
        return self.resume in RESUME_AUTO

    @property
    def world_size(self) -> int:
        """Ranks in all, where every node runs as many."""
        return self.nnodes * self.topology.workers


@dataclass(frozen=True)
class RunOutcome:
    """How the run ended: the exit code to pass on, and one line where it failed or was asked to stop.

    `advice` says why the run was not started again, and what would help; `log` is where the whole story stands."""

    exit_code: int
    message: str | None = None
    advice: str | None = None
    log: str | None = None


DEFAULT_PORT = 29500  # torch.distributed.run's own
LAST_PORT = 65534  # the next one is the coordinator's
COORDINATOR_PORTS = 8
"""So many ports are tried for the supervisors, every second one, as jobs take two each."""


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """The machines as the command line gives them; None for what it does not give."""

    nodes: int | None = None
    node_rank: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    hostfile: Path | None = None


@dataclass(frozen=True, kw_only=True)
class LocalLauncher:
    """This process supervises one machine, node `node` of `nodes`.

    The ranks meet at `host`:`port`; None is any free port, on one machine. `how` says for the user where this is, and
    `run` is what all nodes know of the run and other runs do not have."""

    how: str
    nodes: int = 1
    node: int = 0
    host: str = LOOPBACK
    port: int | None = None
    run: str = ""
    own_terminal: bool = False
    """Whether somebody looks at this node's output apart from the others'."""
    returns: bool = True
    """Whether a node that is lost may come back; a task of SLURM or mpirun is never started again."""
    recreated: bool = False
    """Whether each node is created again, with its number, as long as it does not end with 0: pods of Kubernetes."""
    tool: str = ""
    """How to start one process per machine with what has started this one, where a user has chosen it."""
    listed: bool = False
    """Whether `host` is only the first of a scheduler's list, and mpirun may have put node 0 elsewhere."""
    workers: int = 1
    """Ranks that this node starts."""
    chosen_port: bool = False
    """Whether `port` follows from the job alone, so that node 0 takes another one where it is taken."""

    @property
    def coordinator_ports(self) -> tuple[int, ...]:
        """The ports on node 0 that its supervisor tries, and the others with it: that after `port`, and if nobody has
        named that one, a few more."""
        port = self.port or 0
        last = max(port + 1, min(port + 2 * COORDINATOR_PORTS, LAST_PORT)) if self.chosen_port else port + 1
        return tuple(range(port + 1, last + 1, 2))


@dataclass(frozen=True)
class SrunLauncher:
    """In a SLURM allocation, outside of its steps: one supervisor on each of `nodes` machines, by srun."""

    nodes: int


@dataclass(frozen=True)
class SshLauncher:
    """From one machine to those of a hostfile, or to `hosts`, the machines of `job` of a scheduler."""

    job: str = ""
    hosts: tuple[str, ...] = ()
    port: int = DEFAULT_PORT


def port_of(request: LaunchRequest, environ: Mapping[str, str], default: int) -> int:
    """The port on node 0, by the flag, by MASTER_PORT, or `default`. Raises UsageError for what is none."""
    return request.master_port or port_in(environ, "MASTER_PORT", default)


def port_in(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    """The port in a variable. Raises UsageError for what is none."""
    port = integer(environ, name, default)
    if not 1 <= port <= LAST_PORT:
        raise UsageError(f"{name}={port} is not a valid port", fix=f"give a number from 1 to {LAST_PORT}")
    return port


def integer(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    """The whole number in a variable. Raises UsageError for anything else, and without a `default` for nothing."""
    text = environ.get(name, "").strip()
    if not text and default is not None:
        return default
    if not is_count(text):
        raise UsageError(f"{name}={shortened(text)!r} is not a number", fix=f"unset {name}, or give it one")
    return int(text)
