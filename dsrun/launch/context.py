"""Where `dsrun launch` is: on one machine, on one of several, or where it must start itself on the others. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dsrun.errors import UsageError
from dsrun.launch.job import LOOPBACK
from dsrun.system.env import FIRST_PORT, PORTS, first_host, slurm_port

DEFAULT_PORT = 29500  # torch.distributed.run's own
LAST_PORT = 65534  # the next one is the coordinator's
# Job steps above this number are SLURM's own: the batch script's shell, and the interactive one of salloc (slurm.h).
_OWN_STEPS = 0xFFFFFFF0
# What mpirun sets for its processes: number of this one, of all, and of those on this machine.
_OPEN_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
_HYDRA = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS")


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """The machines as the command line gives them; None for what it does not give."""

    nodes: int | None = None
    node_rank: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    hostfile: bool = False


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
    """Whether each node is created again, under its number, as long as it does not end with 0: a pod of Kubernetes."""


@dataclass(frozen=True)
class SrunLauncher:
    """In a SLURM allocation, outside of its steps: one supervisor on each of `nodes` machines, by srun."""

    nodes: int


@dataclass(frozen=True)
class SshLauncher:
    """From one machine to those of a hostfile."""


def detect(request: LaunchRequest, environ: Mapping[str, str]) -> LocalLauncher | SrunLauncher | SshLauncher:
    """Where this process is. Raises UsageError for what contradicts itself or the surroundings."""
    _check_numbers(request)
    _refuse_workers(request, environ)
    if request.hostfile:
        return _with_hostfile(request, environ)
    started = _started_by_others(request, environ)
    if started:
        return started
    if _in_pod(environ):
        return _pod(request, environ)
    if request.node_rank is not None or ((request.nodes or 1) > 1 and "NODE_RANK" in environ):
        return _by_hand(request, environ)
    if environ.get("SLURM_JOB_ID"):
        return _in_allocation(request, environ)
    if request.nodes and request.nodes > 1:
        raise UsageError(
            f"--nodes {request.nodes}, but not which of them this is",
            fix="--node-rank 0 here and 1, 2 … on the others, with the first one's --master-addr; or --hostfile FILE",
        )
    return LocalLauncher(how="one machine", port=request.master_port)


def _started_by_others(request: LaunchRequest, environ: Mapping[str, str]) -> LocalLauncher | None:
    """One process of several that mpirun or srun started."""
    # Open MPI before SLURM, by whose srun it starts its own daemons; Hydra's variables srun sets as well.
    mpi = next((names for names in (_OPEN_MPI, _HYDRA) if environ.get(names[0]) and environ.get(names[1])), None)
    if in_slurm_step(environ) and mpi is not _OPEN_MPI:
        return _in_step(request, environ)
    return _in_mpi(request, environ, mpi) if mpi else None


def _check_numbers(request: LaunchRequest) -> None:
    nodes, node, port = request.nodes, request.node_rank, request.master_port
    if nodes is not None and nodes < 1:
        raise UsageError(f"--nodes {nodes} is not a valid number of nodes", fix="give 1 or more")
    if node is not None and nodes is None:
        raise UsageError(f"--node-rank {node}, but not of how many", fix="add --nodes N")
    if node is not None and not 0 <= node < (nodes or 1):
        raise UsageError(f"--node-rank {node}, but the {nodes} nodes are 0 to {(nodes or 1) - 1}", fix="count from 0")
    if port is not None and not 1 <= port <= LAST_PORT:
        raise UsageError(f"--master-port {port} is not a valid port", fix=f"give a number from 1 to {LAST_PORT}")


def _refuse_workers(request: LaunchRequest, environ: Mapping[str, str]) -> None:
    if environ.get("LOCAL_RANK"):
        rank = environ.get("RANK") or "?"
        raise UsageError(
            f"this process is worker {rank} of a run already (RANK, LOCAL_RANK), and dsrun launch starts workers",
            fix="call the program itself here, or dsrun launch once on each machine without torchrun",
        )
    if environ.get("RANK") and request.node_rank is None:
        raise UsageError(
            "RANK is set, without LOCAL_RANK: dsrun launch sets it for the workers itself",
            fix="unset RANK; if it counts machines: --nodes $WORLD_SIZE --node-rank $RANK --master-addr $MASTER_ADDR",
        )


def _with_hostfile(request: LaunchRequest, environ: Mapping[str, str]) -> SshLauncher:
    for flag, value in (("--nodes", request.nodes), ("--node-rank", request.node_rank)):
        if value is not None:
            raise UsageError(
                f"{flag} {value} with --hostfile, which says it already",
                fix=f"remove {flag}; --include and --exclude choose machines",
            )
    if in_slurm_step(environ):
        raise UsageError(
            "--hostfile in a step of SLURM, which has started a process on each node already", fix="remove --hostfile"
        )
    return SshLauncher()


def _by_hand(request: LaunchRequest, environ: Mapping[str, str]) -> LocalLauncher:
    nodes = request.nodes or 1
    node = request.node_rank if request.node_rank is not None else _integer(environ, "NODE_RANK")
    if not 0 <= node < nodes:
        raise UsageError(f"NODE_RANK={node}, but --nodes {nodes}", fix=f"nodes are 0 to {nodes - 1}")
    if nodes == 1:
        return LocalLauncher(how="one machine", port=request.master_port)
    host = _first_machine(request, environ, f"--nodes {nodes}, but not where the first one is")
    port = _port(request, environ, DEFAULT_PORT)
    return LocalLauncher(
        how=f"node {node} of {nodes}, started by hand",
        nodes=nodes,
        node=node,
        host=host,
        port=port,
        run=f"by hand {port}",
        own_terminal=True,
    )


def _in_pod(environ: Mapping[str, str]) -> bool:
    """Whether this is a pod of an Indexed Job, as JobSet and Kubeflow's TrainJob make them too."""
    return bool(environ.get("KUBERNETES_SERVICE_HOST") and environ.get("JOB_COMPLETION_INDEX"))


def _pod(request: LaunchRequest, environ: Mapping[str, str]) -> LocalLauncher:
    """One pod of as many as --nodes or torchrun's PET_NNODES says; without either its index counts other things."""
    node = _integer(environ, "JOB_COMPLETION_INDEX")
    nodes = _integer(environ, "PET_NNODES", 1) if request.nodes is None else request.nodes
    if nodes == 1:
        return LocalLauncher(how="one machine, a pod of Kubernetes", port=request.master_port, recreated=True)
    if node >= nodes:
        raise UsageError(
            f"JOB_COMPLETION_INDEX={node}, but the {nodes} nodes are 0 to {nodes - 1}",
            fix=f"set completions and parallelism of the Job to {nodes}, or give --nodes their number",
        )
    if request.node_rank not in (None, node):
        raise UsageError(
            f"--node-rank {request.node_rank}, but JOB_COMPLETION_INDEX says that this pod is node {node}",
            fix="remove --node-rank; if the index counts something else, unset JOB_COMPLETION_INDEX",
        )
    petted = {name: environ[f"PET_{name}"] for name in ("MASTER_ADDR", "MASTER_PORT") if environ.get(f"PET_{name}")}
    environ = {**petted, **environ}
    host = _first_machine(
        request, environ, f"pod {node} of {nodes} of a Kubernetes Job, but not where the first one is"
    )
    port = _port(request, environ, DEFAULT_PORT)
    return LocalLauncher(
        how=f"node {node} of {nodes}, a pod of Kubernetes",
        nodes=nodes,
        node=node,
        host=host,
        port=port,
        run=f"kubernetes {port}",
        recreated=True,
    )


def in_slurm_step(environ: Mapping[str, str]) -> bool:
    """Whether srun has started this process; the shells of sbatch and salloc are not meant."""
    step = environ.get("SLURM_STEP_ID", "")
    return bool(environ.get("SLURM_JOB_ID")) and step.isdigit() and int(step) < _OWN_STEPS


def _in_step(request: LaunchRequest, environ: Mapping[str, str]) -> LocalLauncher:
    nodes = _integer(environ, "SLURM_STEP_NUM_NODES", 1)
    tasks = _integer(environ, "SLURM_STEP_NUM_TASKS", 1)
    node = _integer(environ, "SLURM_NODEID", 0)
    if tasks != nodes:
        raise UsageError(
            f"srun started {tasks} tasks on {nodes} node{'s' if nodes > 1 else ''}; "
            "dsrun launch starts the workers itself",
            fix="srun --ntasks-per-node=1",
        )
    for flag, value, real in (("--nodes", request.nodes, nodes), ("--node-rank", request.node_rank, node)):
        if value is not None and value != real:
            raise UsageError(
                f"{flag} {value}, but this is node {node} of the {nodes} of its step of SLURM",
                fix="remove --nodes, --node-rank and --master-addr: SLURM sets them",
            )
    if nodes == 1:
        return LocalLauncher(how="one machine, under SLURM", port=request.master_port)
    nodelist = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")
    host = request.master_addr or environ.get("MASTER_ADDR") or first_host(nodelist)
    if not host:
        raise UsageError("SLURM_STEP_NODELIST is not set in this step of SLURM", fix="--master-addr FIRST_NODE")
    # Every second one: the next one is the coordinator's.
    port = _port(request, environ, FIRST_PORT + (slurm_port(environ) - FIRST_PORT) * 2 % PORTS)
    job, step = environ["SLURM_JOB_ID"], environ["SLURM_STEP_ID"]
    return LocalLauncher(
        how=f"node {node} of {nodes} of SLURM job {job}",
        nodes=nodes,
        node=node,
        host=host,
        port=port,
        run=f"slurm {job}.{step} {environ.get('SLURM_RESTART_COUNT', '0')}",
        returns=False,
    )


def _in_allocation(request: LaunchRequest, environ: Mapping[str, str]) -> LocalLauncher | SrunLauncher:
    """The shell of sbatch or salloc, which is on the first node, or with salloc on the login node."""
    there = _integer(environ, "SLURM_JOB_NUM_NODES", _integer(environ, "SLURM_NNODES", 1))
    nodes = there if request.nodes is None else request.nodes
    if nodes > there:
        raise UsageError(
            f"--nodes {nodes}, but SLURM job {environ['SLURM_JOB_ID']} has {there}",
            fix=f"--nodes {there}, or sbatch --nodes={nodes}",
        )
    on_a_node = bool(environ.get("SLURMD_NODENAME"))
    if nodes == 1 and on_a_node:
        return LocalLauncher(how="one machine, under SLURM", port=request.master_port)
    return SrunLauncher(nodes)


def _in_mpi(request: LaunchRequest, environ: Mapping[str, str], names: tuple[str, str, str]) -> LocalLauncher:
    rank, size, local = names
    nodes, node, beside = _integer(environ, size), _integer(environ, rank), _integer(environ, local, 1)
    if beside > 1:
        raise UsageError(
            f"mpirun has started {beside} processes on this machine; dsrun launch starts its workers itself",
            fix="mpirun -npernode 1 (Open MPI), mpirun -ppn 1 (others)",
        )
    if request.nodes not in (None, nodes):
        raise UsageError(f"--nodes {request.nodes}, but mpirun has started {nodes} processes", fix="remove it")
    if nodes == 1:
        return LocalLauncher(how="one machine, under mpirun", port=request.master_port)
    why = f"under mpirun on {nodes} machines, which does not say where the first one is"
    host = _first_machine(request, environ, why)
    port = _port(request, environ, DEFAULT_PORT)
    return LocalLauncher(
        how=f"node {node} of {nodes}, under mpirun",
        nodes=nodes,
        node=node,
        host=host,
        port=port,
        run=f"mpi {port}",
        returns=False,
    )


def _first_machine(request: LaunchRequest, environ: Mapping[str, str], missing: str) -> str:
    host = request.master_addr or environ.get("MASTER_ADDR")
    if not host:
        raise UsageError(missing, fix="--master-addr NAME_OF_NODE_0, the same on all nodes")
    return host


def _port(request: LaunchRequest, environ: Mapping[str, str], default: int) -> int:
    port = request.master_port or _integer(environ, "MASTER_PORT", default)
    if not 1 <= port <= LAST_PORT:
        raise UsageError(f"MASTER_PORT={port} is not a valid port", fix=f"give a number from 1 to {LAST_PORT}")
    return port


def _integer(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name, "").strip()
    if not text and default is not None:
        return default
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"{name}={text!r} is not a number", fix=f"unset {name}, or give it one")
    return int(text)
