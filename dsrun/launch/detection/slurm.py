"""Which node this is in a SLURM job: a task of a step, or the shell of sbatch and salloc. Pure."""

import re
from collections.abc import Mapping

from dsrun.launch.context import LaunchRequest, LocalLauncher, SrunLauncher, integer, port_of
from dsrun.launch.refusals import refusal, refuse
from dsrun.system import variables
from dsrun.system.env import FIRST_PORT, PORTS, first_host, slurm_port

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
