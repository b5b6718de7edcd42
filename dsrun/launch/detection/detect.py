"""Where `dsrun launch` was started, by its flags and the environment; in a SLURM job by a task of a step, or by the
shell of sbatch and salloc. Pure, but for the lists that `text_of` reads."""

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
from dsrun.launch.detection.started import job_port, launcher_of, place_by, processes, refuse_unflagged
from dsrun.launch.detection.table import HostReader, LauncherFacts, SchedulerFacts, machines, read, scheduler_of
from dsrun.launch.refusals import refusal, refuse
from dsrun.system import variables
from dsrun.system.env import FIRST_PORT, PORTS, first_host, is_only_process, shortened, slurm_port

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

    Raises UsageError for one of several, of which each would be a run of its own without `dsrun launch`."""
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


# Job steps above this number are SLURM's own: the batch script's shell, and the interactive one of salloc (slurm.h).
_OWN_STEPS = 0xFFFFFFF0
_STEP = re.compile("[0-9]{1,10}")


def in_slurm_step(environ: Mapping[str, str]) -> bool:
    """Whether srun has started this process; the shells of sbatch and salloc are not meant."""
    step = _STEP.fullmatch(environ.get("SLURM_STEP_ID", ""))
    return bool(environ.get("SLURM_JOB_ID")) and step is not None and int(step[0]) < _OWN_STEPS


def in_step(request: LaunchRequest, environ: Mapping[str, str]) -> LocalLauncher:
    nodes = integer(environ, "SLURM_STEP_NUM_NODES", 1)
    tasks = integer(environ, "SLURM_STEP_NUM_TASKS", 1)
    node = integer(environ, "SLURM_NODEID", 0)
    refuse("step", request=request, tasks=tasks, nodes=nodes, node=node)
    if nodes == 1:
        return LocalLauncher(how="one machine, under SLURM", port=request.master_port)
    nodelist = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")
    host = request.master_addr or environ.get("MASTER_ADDR") or first_host(nodelist)
    if not host:
        raise refusal("slurm.no_list")
    # Every second one: the next one is the coordinator's.
    port = port_of(request, environ, FIRST_PORT + (slurm_port(environ) - FIRST_PORT) * 2 % PORTS)
    job, step = environ["SLURM_JOB_ID"], environ["SLURM_STEP_ID"]
    return LocalLauncher(
        how=f"node {node} of {nodes} of SLURM job {job}",
        nodes=nodes,
        node=node,
        host=host,
        port=port,
        run=f"slurm {job}.{step} {environ.get('SLURM_RESTART_COUNT', '0')}",
        returns=False,
        # The script of render-slurm, which sets the folder, names one that follows from the job.
        chosen_port=bool(environ.get(variables.FAILURES)) or not (request.master_port or environ.get("MASTER_PORT")),
    )


def in_allocation(request: LaunchRequest, environ: Mapping[str, str]) -> LocalLauncher | SrunLauncher:
    """The shell of sbatch or salloc, which is on the first node, or with salloc on the login node."""
    there = integer(environ, "SLURM_JOB_NUM_NODES", integer(environ, "SLURM_NNODES", 1))
    nodes = there if request.nodes is None else request.nodes
    if nodes > there:
        raise refusal("slurm.smaller_job", nodes=nodes, job=environ["SLURM_JOB_ID"], there=there)
    on_a_node = bool(environ.get("SLURMD_NODENAME"))
    if nodes == 1 and on_a_node:
        return LocalLauncher(how="one machine, under SLURM", port=request.master_port)
    return SrunLauncher(nodes)
