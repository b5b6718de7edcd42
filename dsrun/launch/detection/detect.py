"""Where `dsrun launch` was started, by its flags and the environment. Pure, but for the lists that `text_of` reads."""

import re
from collections.abc import Mapping

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
from dsrun.launch.detection.slurm import in_allocation, in_slurm_step, in_step
from dsrun.launch.detection.started import job_port, launcher_of, place_by, processes, refuse_unflagged
from dsrun.launch.detection.table import HostReader, LauncherFacts, SchedulerFacts, machines, read, scheduler_of
from dsrun.launch.refusals import refusal, refuse
from dsrun.system.env import is_only_process, shortened

_ADDRESS = re.compile(r"[^\s-]\S*")


def detect(
    request: LaunchRequest, environ: Mapping[str, str], text_of: HostReader = read
) -> LocalLauncher | SrunLauncher | SshLauncher:
    """Where this process is. Raises UsageError for what contradicts itself or the surroundings."""
    refuse("request", request=request, last_node=(request.nodes or 1) - 1, last_port=LAST_PORT)
    launcher = _launcher(request, environ)
    if environ.get("LOCAL_RANK") and "LOCAL_RANK" not in (launcher.where if launcher else ()):
        raise refusal("place.worker", rank=environ.get("RANK") or "?")
    step = launcher is None and in_slurm_step(environ)
    if request.hostfile:
        tool = launcher.where_it_is if launcher and launcher.tool else ""
        refuse("hostfile", request=request, launcher="in a step of SLURM" if step else tool)
        return SshLauncher()
    if step:
        place: LocalLauncher | SrunLauncher | SshLauncher = in_step(request, environ)
    elif launcher:
        place = place_by(launcher, request, environ, text_of)
    else:
        place = _not_started(request, environ, text_of)
    # What ssh and torchrun would take for an option, and what no machine is called.
    if isinstance(place, LocalLauncher) and not _ADDRESS.fullmatch(place.host):
        raise refusal("place.no_name", host=shortened(place.host))
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
    if (size := processes(launcher, environ, text_of)) != 1:
        refuse("several", launcher=launcher, size=size)
    return True


def _not_started(
    request: LaunchRequest, environ: Mapping[str, str], text_of: HostReader
) -> LocalLauncher | SrunLauncher | SshLauncher:
    """Where a user or a job's script has started this, and no launcher."""
    if environ.get("RANK") and request.node_rank is None and not is_only_process(environ):
        raise refusal("place.rank_alone")
    refuse_unflagged(request, environ)
    if request.node_rank is not None or ((request.nodes or 1) > 1 and "NODE_RANK" in environ):
        return _by_hand(request, environ)
    if environ.get("SLURM_JOB_ID"):
        return in_allocation(request, environ)
    if scheduler := scheduler_of(environ):
        return _in_job(scheduler, request, environ, text_of)
    if request.nodes and request.nodes > 1:
        raise refusal("place.which", nodes=request.nodes)
    return LocalLauncher(how="one machine", port=request.master_port)


def _by_hand(request: LaunchRequest, environ: Mapping[str, str]) -> LocalLauncher:
    nodes = request.nodes or 1
    node = request.node_rank if request.node_rank is not None else integer(environ, "NODE_RANK")
    if not 0 <= node < nodes:
        raise refusal("place.beyond", node=node, nodes=nodes, last=nodes - 1)
    if nodes == 1:
        return LocalLauncher(how="one machine", port=request.master_port)
    if not (host := request.master_addr or environ.get("MASTER_ADDR")):
        raise refusal("place.first_by_hand", nodes=nodes)
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
        raise refusal("place.larger_than_job", nodes=nodes, job=job, there=len(hosts))
    return SshLauncher(job, hosts[:nodes], port_of(request, environ, job_port(environ[scheduler.job])))
