"""Where `dsrun launch` was started, by its flags and the environment. Pure, but for the lists that `text_of` reads."""

import re
from collections.abc import Mapping

from dsrun.errors import UsageError
from dsrun.launch.context import (
    DEFAULT_PORT,
    LAST_PORT,
    LaunchRequest,
    LocalLauncher,
    SrunLauncher,
    SshLauncher,
    integer,
    port_of,
)
from dsrun.launch.detection.hosts import HostReader, machines, read
from dsrun.launch.detection.slurm import in_allocation, in_slurm_step, in_step
from dsrun.launch.detection.started import job_port, launcher_of, place_by, processes, refuse_unflagged
from dsrun.launch.detection.table import LauncherFacts, SchedulerFacts, scheduler_of
from dsrun.system.env import is_only_process, shortened

_ADDRESS = re.compile(r"[^\s-]\S*")


def detect(
    request: LaunchRequest, environ: Mapping[str, str], text_of: HostReader = read
) -> LocalLauncher | SrunLauncher | SshLauncher:
    """Where this process is. Raises UsageError for what contradicts itself or the surroundings."""
    _check_numbers(request)
    launcher = _launcher(request, environ)
    if "LOCAL_RANK" not in (launcher.where if launcher else ()):
        _refuse_worker(environ)
    step = launcher is None and in_slurm_step(environ)
    if request.hostfile:
        tool = launcher.where_it_is if launcher and launcher.tool else ""
        _check_hostfile(request, "in a step of SLURM" if step else tool)
        return SshLauncher()
    if step:
        place: LocalLauncher | SrunLauncher | SshLauncher = in_step(request, environ)
    elif launcher:
        place = place_by(launcher, request, environ, text_of)
    else:
        place = _not_started(request, environ, text_of)
    _check_address(place)
    return place


def _launcher(request: LaunchRequest, environ: Mapping[str, str]) -> LauncherFacts | None:
    """The launcher of this process, if it is not srun, which sets the variables of others as well."""
    launcher = launcher_of(request, environ)
    return None if in_slurm_step(environ) and not (launcher and launcher.starts_by_srun) else launcher


def started_alone(environ: Mapping[str, str], text_of: HostReader = read) -> bool:
    """Whether a launcher or a platform has started this process, as the only one of its run; a worker is none.

    Raises UsageError for one of several, of which each would be a run of its own without `dsrun launch`.
    """
    launcher = None if environ.get("LOCAL_RANK") else _launcher(LaunchRequest(), environ)
    if launcher is None:
        return False
    size = processes(launcher, environ, text_of)
    if size == 1:
        return True
    raise UsageError(
        f"{launcher.called} has started {size} of these, and each would be a run of its own"
        if launcher.tool
        else f"this is {launcher.called}, one of {size}, and `dsrun train` runs on one machine",
        fix="dsrun launch -- dsrun train …" + (f", by {launcher.tool}" if launcher.tool else " on each of them"),
    )


def _not_started(
    request: LaunchRequest, environ: Mapping[str, str], text_of: HostReader
) -> LocalLauncher | SrunLauncher | SshLauncher:
    """Where a user or a job's script has started this, and no launcher."""
    _refuse_rank(request, environ)
    refuse_unflagged(request, environ)
    if request.node_rank is not None or ((request.nodes or 1) > 1 and "NODE_RANK" in environ):
        return _by_hand(request, environ)
    if environ.get("SLURM_JOB_ID"):
        return in_allocation(request, environ)
    if scheduler := scheduler_of(environ):
        return _in_job(scheduler, request, environ, text_of)
    if request.nodes and request.nodes > 1:
        raise UsageError(
            f"--nodes {request.nodes}, but not which of them this is",
            fix="--node-rank 0 here and 1, 2 … on the others, with the first one's --master-addr; or --hostfile FILE",
        )
    return LocalLauncher(how="one machine", port=request.master_port)


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


def _check_address(place: LocalLauncher | SrunLauncher | SshLauncher) -> None:
    """What ssh and torchrun would take for an option, and what no machine is called."""
    if isinstance(place, LocalLauncher) and not _ADDRESS.fullmatch(place.host):
        raise UsageError(
            f"{shortened(place.host)!r} is not a valid name of node 0",
            fix="correct --master-addr or MASTER_ADDR, the same on all nodes",
        )


def _refuse_worker(environ: Mapping[str, str]) -> None:
    if environ.get("LOCAL_RANK"):
        rank = environ.get("RANK") or "?"
        raise UsageError(
            f"this process is worker {rank} of a run already (RANK, LOCAL_RANK), and dsrun launch starts workers",
            fix="call the program itself here, or dsrun launch once on each machine without torchrun",
        )


def _refuse_rank(request: LaunchRequest, environ: Mapping[str, str]) -> None:
    if environ.get("RANK") and request.node_rank is None and not is_only_process(environ):
        raise UsageError(
            "RANK is set, without LOCAL_RANK: dsrun launch sets it for the workers itself",
            fix="unset RANK; if it counts machines: --nodes $WORLD_SIZE --node-rank $RANK --master-addr $MASTER_ADDR",
        )


def _check_hostfile(request: LaunchRequest, launcher: str) -> None:
    for flag, value in (("--nodes", request.nodes), ("--node-rank", request.node_rank)):
        if value is not None:
            raise UsageError(
                f"{flag} {value} with --hostfile, which says it already",
                fix=f"remove {flag}; --include and --exclude choose machines",
            )
    if launcher:
        raise UsageError(
            f"--hostfile {launcher}, which has started a process on each node already", fix="remove --hostfile"
        )


def _by_hand(request: LaunchRequest, environ: Mapping[str, str]) -> LocalLauncher:
    nodes = request.nodes or 1
    node = request.node_rank if request.node_rank is not None else integer(environ, "NODE_RANK")
    if not 0 <= node < nodes:
        raise UsageError(f"NODE_RANK={node}, but --nodes {nodes}", fix=f"nodes are 0 to {nodes - 1}")
    if nodes == 1:
        return LocalLauncher(how="one machine", port=request.master_port)
    if not (host := request.master_addr or environ.get("MASTER_ADDR")):
        missing = f"--nodes {nodes}, but not where the first one is"
        raise UsageError(missing, fix="--master-addr NAME_OF_NODE_0, the same on all nodes")
    port = port_of(request, environ, DEFAULT_PORT)
    return LocalLauncher(
        how=f"node {node} of {nodes}, started by hand",
        nodes=nodes,
        node=node,
        host=host,
        port=port,
        run=f"by hand {port}",
        own_terminal=True,
    )


def _in_job(
    scheduler: SchedulerFacts, request: LaunchRequest, environ: Mapping[str, str], text_of: HostReader
) -> LocalLauncher | SshLauncher:
    """The script of a job, on the first of its machines."""
    job = f"{scheduler.called} job {environ[scheduler.job]}"
    # With --nodes 1 the list is not needed: a terminal may have kept the variables of a job that is over.
    hosts = () if request.nodes == 1 else machines(scheduler.hosts, environ, text_of)
    nodes = len(hosts) if request.nodes is None else request.nodes
    if nodes == 1:
        return LocalLauncher(how=f"one machine, {job}", port=request.master_port)
    if nodes > len(hosts):
        raise UsageError(f"--nodes {nodes}, but {job} has {len(hosts)}", fix=f"--nodes {len(hosts)}, or a larger job")
    return SshLauncher(job, hosts[:nodes], port_of(request, environ, job_port(environ[scheduler.job])))
