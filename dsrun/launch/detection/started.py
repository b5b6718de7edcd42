"""Which node this is, where a launcher or a platform has started the command on each machine. Pure."""

import re
import zlib
from collections.abc import Mapping

from dsrun.launch.context import DEFAULT_PORT, LaunchRequest, LocalLauncher, integer, port_in, port_of
from dsrun.launch.detection.table import HostReader, LauncherFacts, cluster_rank, launchers, machines, scheduler_of
from dsrun.launch.refusals import refusal, refuse
from dsrun.system.env import FIRST_PORT, PORTS, first_host, shortened


def launcher_of(request: LaunchRequest, environ: Mapping[str, str]) -> LauncherFacts | None:
    """The launcher that the environment shows."""
    return next((each for each in launchers() if each.matches(environ) and _counts(each, request, environ)), None)


def _counts(launcher: LauncherFacts, request: LaunchRequest, environ: Mapping[str, str]) -> bool:
    """Whether the command line agrees that its variables are about this run."""
    if launcher.yields:
        return request.node_rank is None
    if launcher.flags_only:
        address = request.master_addr or environ.get("MASTER_ADDR")
        return bool(request.nodes and request.node_rank is None and address)
    return True


def refuse_unflagged(request: LaunchRequest, environ: Mapping[str, str]) -> None:
    """Raises UsageError on a machine that only flags could make a part of the run."""
    for each in launchers():
        alone = each.flags_only and each.matches(environ) and request.nodes != 1 and request.node_rank is None
        if alone and (node := integer(environ, each.rank)) > 0:
            raise refusal("launcher.alone", launcher=each, node=node)


def place_by(
    launcher: LauncherFacts, request: LaunchRequest, environ: Mapping[str, str], text_of: HostReader
) -> LocalLauncher:
    """The node that `launcher` has started here. Raises UsageError for what contradicts itself or the flags."""
    hosts = () if _is_alone(launcher, request) else _listed(launcher, environ, text_of)
    nodes = _nodes(launcher, request, environ, hosts)
    if nodes == 1:
        how = f"one machine, {launcher.where_it_is}"
        return LocalLauncher(how=how, port=request.master_port, recreated=launcher.recreated)
    node, said_by = _node(launcher, environ, hosts)
    refuse("number", request=request, launcher=launcher, node=node, nodes=nodes, last=nodes - 1, said_by=said_by)
    host, listed = _address(launcher, request, environ, text_of, nodes)
    port = port_of(request, environ, _default_port(launcher, environ, listed=listed))
    is_named = request.master_port is not None or bool(environ.get("MASTER_PORT") or environ.get(launcher.port))
    return LocalLauncher(
        how=f"node {node} of {nodes}, {launcher.where_it_is}",
        nodes=nodes,
        node=node,
        host=host,
        port=port,
        run=f"{launcher.called} {port}",
        returns=launcher.returns,
        recreated=launcher.recreated,
        tool=launcher.tool,
        listed=listed,
        # Runs that no job tells apart would meet each other's supervisors there.
        chosen_port=bool(launcher.job) and not is_named,
    )


def _listed(launcher: LauncherFacts, environ: Mapping[str, str], text_of: HostReader) -> tuple[str, ...]:
    """The machines, where no variable counts them."""
    return machines(launcher.hosts, environ, text_of) if launcher.hosts and not launcher.size else ()


def processes(launcher: LauncherFacts, environ: Mapping[str, str], text_of: HostReader) -> int:
    """How many processes it has started, as far as it says so."""
    if launcher.size:
        return integer(environ, launcher.size, 1)
    return len(_listed(launcher, environ, text_of)) or 1


def _is_alone(launcher: LauncherFacts, request: LaunchRequest) -> bool:
    """Whether --nodes 1 says so. On a platform each machine may have a run of its own; mpirun starts parts of one."""
    return request.nodes == 1 and not launcher.tool


def _nodes(launcher: LauncherFacts, request: LaunchRequest, environ: Mapping[str, str], hosts: tuple[str, ...]) -> int:
    """How many machines there are."""
    if launcher.flags_only or (launcher.sweeps and request.nodes is not None):
        return request.nodes or 1
    if _is_alone(launcher, request) or (launcher.sweeps and not environ.get(launcher.size)):
        return 1
    size = integer(environ, launcher.size) if launcher.size else len(hosts)
    # One process per machine: dsrun launch starts the workers.
    beside = integer(environ, launcher.local_size, 1) if launcher.local_size else 1
    there = integer(environ, launcher.nodes, size) if launcher.nodes else size
    refuse("size", request=request, launcher=launcher, size=size, beside=beside, there=there)
    return size


def _node(launcher: LauncherFacts, environ: Mapping[str, str], hosts: tuple[str, ...]) -> tuple[int, str]:
    """This machine's number, and the variable that says it."""
    if launcher.own:
        name = environ[launcher.own]
        if name not in hosts:
            listed = ", ".join(hosts[:5])
            raise refusal("own_number.not_listed", variable=launcher.own, name=shortened(name), machines=listed)
        return hosts.index(name), launcher.own
    if launcher.rank:
        return integer(environ, launcher.rank), launcher.rank
    assert launcher.hosts is not None
    try:
        return cluster_rank(environ[launcher.hosts.of]), launcher.hosts.of
    except (ValueError, TypeError, KeyError, AttributeError):
        raise refusal("own_number.untold", variable=launcher.hosts.of, count=len(hosts)) from None


def _address(
    launcher: LauncherFacts, request: LaunchRequest, environ: Mapping[str, str], text_of: HostReader, nodes: int
) -> tuple[str, bool]:
    """Where node 0 is, and whether only a scheduler's list says so, in which mpirun may have left out the first."""
    given = request.master_addr or environ.get("MASTER_ADDR") or environ.get(launcher.address)
    if given:
        with_port = re.fullmatch(r"([^:]+):\d+", given)
        return (with_port[1] if with_port else given), False
    if launcher.hosts:
        return machines(launcher.hosts, environ, text_of)[0], False
    if launcher.tool:
        scheduler = scheduler_of(environ)
        if scheduler:
            return machines(scheduler.hosts, environ, text_of)[0], True
        if first := first_host(environ.get("SLURM_JOB_NODELIST", "")):
            return first, True
    raise refusal(f"first.{'by_tool' if launcher.tool else 'by_platform'}", launcher=launcher, nodes=nodes)


def _default_port(launcher: LauncherFacts, environ: Mapping[str, str], *, listed: bool) -> int:
    """The port where none is given: one that the job has for itself, if all nodes know the job."""
    if environ.get(launcher.port):
        return port_in(environ, launcher.port)
    if launcher.job:
        return job_port(environ.get(launcher.job, ""))
    scheduler = scheduler_of(environ) if listed else None
    return job_port(environ[scheduler.job]) if scheduler else DEFAULT_PORT


def job_port(job: str) -> int:
    """A port that differs between jobs, which may share a machine; the one after it is the coordinator's."""
    # hash() of a text is another number in each process (PYTHONHASHSEED).
    return FIRST_PORT + zlib.crc32(job.encode()) % (PORTS // 2) * 2
