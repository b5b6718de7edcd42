"""Where `dsrun launch` can be: on one machine, on one of several, or where it must start itself on the others."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dsrun.errors import UsageError
from dsrun.launch.training_job import LOOPBACK
from dsrun.system.env import is_count, shortened

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
    `run` is what all nodes know of the run and other runs do not have.
    """

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
