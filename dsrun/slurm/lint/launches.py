"""What is launched against what the job asks for: nodes, tasks, GPUs, rendezvous."""

import re
from collections.abc import Iterator

from dsrun.slurm.lint.launch import ScriptLaunch
from dsrun.slurm.lint.read_script import JobScript, ScriptProblem
from dsrun.system.terminal.display import counted

_RANK = re.compile(r"\$\{?(SLURM_(?:NODEID|PROCID|LOCALID))\b")
_COUNTS_CPUS = re.compile(r"SLURM_(CPUS_\w+|JOB_CPUS_PER_NODE|NTASKS\w*|TASKS_PER_NODE)|\bnproc\b|os\.cpu_count")
NODES = {"torchrun": "--nnodes", "accelerate": "--num_machines"}
# Options in an array, which is not read.
_ARRAY = re.compile(r"\$\{?\w+\[|\$\{?[@*]")
NODE_RANK = {"torchrun": "--node_rank", "accelerate": "--machine_rank"}


def check_launches(script: JobScript) -> Iterator[ScriptProblem]:
    for launch in script.launches:
        nodes = launch.srun_number("-N", "--nodes") or script.nodes
        yield from _tasks(script, launch, nodes)
        if launch.kind in NODES and not any(map(_ARRAY.match, launch.words)):
            yield from _ranks(script, launch)
            if nodes and nodes > 1 and launch.srun is not None:
                yield from _rendezvous(launch, nodes)
                yield from _node_rank(launch, nodes)
    first = next((each for each in script.launches if each.kind != "program"), None)
    on_cpu = first and ("--cpu" in first.words or first.option("--use-cpu", "--ddp-backend") is not None)
    if first and script.gpus == 0 and script.directives and not (script.get("exclusive") or on_cpu):
        yield first.line, "no_gpus", {"launcher": first.name}


def _per_node(script: JobScript, launch: ScriptLaunch, nodes: int | None) -> int | None:
    """Tasks that this srun starts on each node."""
    per_node, tasks = launch.srun_number("--ntasks-per-node"), launch.srun_number("-n", "--ntasks")
    if per_node:
        return per_node
    if tasks:
        return -(-tasks // nodes) if nodes else None
    return script.tasks_per_node


def _tasks(script: JobScript, launch: ScriptLaunch, nodes: int | None) -> Iterator[ScriptProblem]:
    """How many processes start, and where."""
    tasks, gpus = _per_node(script, launch, nodes), script.gpus
    if launch.kind == "deepspeed" and launch.srun is not None and "--no_ssh" not in launch.words:
        if (nodes or 2) > 1 or (tasks or 1) > 1:
            yield launch.line, "srun_deepspeed", {}
    elif launch.srun is None and nodes and nodes > 1:
        # The launcher of DeepSpeed reaches other hosts by itself.
        if launch.kind != "program" and launch.option("--hostfile", "-H") is None:
            yield launch.line, "batch_shell_only", {"launcher": launch.name, "nodes": nodes}
    elif launch.kind in NODES and tasks and tasks > 1:
        if launch.srun is not None:
            yield launch.line, "launcher_per_task", {"launcher": launch.name, "tasks": tasks}
    elif launch.kind == "program" and gpus and gpus > 1 and not script.get("gpus-per-task"):
        if launch.srun is None:
            if not launch.background:
                yield launch.line, "program_without_launcher", {"program": launch.name, "gpus": gpus}
        elif tasks and tasks < gpus and launch.srun_number("--gpus-per-task", "--gpus") is None:
            yield launch.line, "tasks_below_gpus", {"tasks": counted(tasks, "task"), "gpus": gpus}
    if launch.kind == "program" and launch.srun is not None and gpus and tasks and tasks > gpus:
        yield launch.line, "tasks_exceed_gpus", {"tasks": tasks, "gpus": gpus}


def _ranks(script: JobScript, launch: ScriptLaunch) -> Iterator[ScriptProblem]:
    """Ranks of each node against its GPUs."""
    gpus = script.gpus
    flag = "--nproc_per_node" if launch.kind == "torchrun" else "--num_processes"
    given = launch.option(flag)
    if given is not None and _COUNTS_CPUS.search(given) and "GPU" not in given:
        if launch.kind == "torchrun":
            yield launch.line, "ranks_from_cpus", {"flag": flag, "given": given}
    elif given is None:
        if launch.kind == "torchrun" and gpus and gpus > 1 and "torch.distributed.launch" not in launch.words:
            yield launch.line, "ranks_default", {"gpus": gpus}
    elif given.isdigit() and gpus:
        machines = launch.option("--num_machines") or "1"
        if launch.kind == "accelerate" and not machines.isdigit():
            return
        # Accelerate counts the ranks of all nodes.
        all_gpus = gpus * (int(machines) if launch.kind == "accelerate" else 1)
        code = "ranks_exceed_gpus" if int(given) > all_gpus else "gpus_idle" if int(given) < all_gpus else None
        if code:
            yield launch.line, code, {"flag": flag, "given": given, "gpus": all_gpus}


def _rendezvous(launch: ScriptLaunch, nodes: int) -> Iterator[ScriptProblem]:
    """Whether the launchers of all nodes find each other. A file of Accelerate's may hold what the flags lack."""
    flag = NODES[launch.kind]
    given = launch.option(flag)
    words = {"launcher": launch.name, "nodes": nodes, "flag": flag, "given": given}
    if "--standalone" in launch.words:
        yield launch.line, "standalone", words
        return
    configured = launch.kind == "accelerate" and launch.option("--config_file") is not None
    if given is None:
        if not configured:
            yield launch.line, "nodes_missing", words
    elif given.isdigit() and int(given) != nodes:
        yield launch.line, "nodes_mismatch", words
    names = ("--rdzv-endpoint", "--master-addr", "--main-process-ip")
    if not configured and launch.option(*names) is None:
        in_environment = any(each.startswith(("PET_RDZV_ENDPOINT", "PET_MASTER_ADDR")) for each in launch.environment)
        if not in_environment:
            yield launch.line, "no_rendezvous", words


def _node_rank(launch: ScriptLaunch, nodes: int) -> Iterator[ScriptProblem]:
    flag = NODE_RANK[launch.kind]
    given = launch.option(flag)
    # c10d gives the ranks itself.
    if given is None or launch.option("--rdzv-backend") == "c10d":
        return
    found = _RANK.search(given)
    if found and not launch.on_task:
        yield launch.line, "rank_in_batch_shell", {"variable": f"${found[1]}", "flag": flag}
    elif given.isdigit():
        yield launch.line, "rank_constant", {"flag": flag, "given": given, "nodes": nodes}
