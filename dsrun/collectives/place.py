"""Where this process of the doctor takes part: alone, as a node started by hand, or as a task of srun. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dsrun.launch.context import LOOPBACK, LaunchRequest, LocalLauncher, SrunLauncher, SshLauncher
from dsrun.launch.detection.detect import detect
from dsrun.launch.refusals import refusal
from dsrun.system.hostlist import expand_hosts


@dataclass(frozen=True, kw_only=True)
class MemberPlace:
    """Member `index` of `count`. The ranks meet at `host`:`port`, the doctor's processes at the port after it; without
    a port, on one machine, any free one is taken.

    `run` is what all members know of this test and others do not; `names` are the members' hosts by index, where SLURM
    has told them; `ranks` how many ranks this member starts (None: one per GPU), and `local_rank` which GPU is its
    own, where srun has started a task per rank."""

    index: int = 0
    count: int = 1
    host: str = LOOPBACK
    port: int | None = None
    run: str = ""
    names: tuple[str, ...] = ()
    ranks: int | None = None
    local_rank: int | None = None
    by_hand: bool = False


def place_of(*, ranks: int | None, environ: Mapping[str, str], **machines: Any) -> MemberPlace | SrunLauncher:
    """Where this process is; SrunLauncher in a SLURM allocation outside of its steps, where srun has to start one
    process per node. `machines` are fields of LaunchRequest. Raises UsageError for what contradicts itself or the
    surroundings."""
    environ, per_task = _tasks_as_nodes(environ)
    request = LaunchRequest(**machines)
    alone = request.nodes is None and request.node_rank is None and ranks is not None
    if alone and not environ.get("SLURM_STEP_ID"):
        on_this = environ.get("SLURMD_NODENAME") or not environ.get("SLURM_JOB_ID")
        request = replace(request, nodes=1 if on_this else None)
    found = detect(request, environ)
    if isinstance(found, SrunLauncher):
        return found
    if isinstance(found, SshLauncher):
        if request.nodes is not None:
            raise refusal("place.only_slurm", nodes=request.nodes, job=found.job)
        found = detect(replace(request, nodes=1), environ)
    assert isinstance(found, LocalLauncher)
    listed = environ.get("SLURM_STEP_NODELIST", "") if found.nodes > 1 and not found.own_terminal else ""
    names = expand_hosts(listed) if listed else ()
    return MemberPlace(
        index=found.node,
        count=found.nodes,
        host=found.host,
        port=found.port,
        run=f"doctor {found.run}",
        names=names if len(names) == found.nodes else (),
        ranks=1 if per_task else ranks,
        local_rank=int(environ.get("SLURM_LOCALID") or 0) if per_task else None,
        by_hand=found.own_terminal,
    )


def _tasks_as_nodes(environ: Mapping[str, str]) -> tuple[Mapping[str, str], bool]:
    """`environ` in which each task of srun counts as a node of its own, and whether that was a change: several tasks
    run on one node, each with one rank."""
    tasks, nodes = environ.get("SLURM_STEP_NUM_TASKS", ""), environ.get("SLURM_STEP_NUM_NODES", "")
    if not tasks or tasks == nodes or not environ.get("SLURM_PROCID"):
        return environ, False
    changes = {"SLURM_STEP_NUM_NODES": tasks, "SLURM_NODEID": environ["SLURM_PROCID"]}
    return {**environ, **changes}, True
