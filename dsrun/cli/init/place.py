"""Where a first run runs: on this machine, or as a SLURM job in a partition of its cluster."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from shutil import which
from typing import Any

from dsrun.cli.init.interview import InitAnswer, InitInterview, question
from dsrun.cli.init.job_options import OPTIONS, ask_job
from dsrun.errors import UsageError
from dsrun.machine.gpus import LocalGpu, visible_gpus
from dsrun.slurm.cluster.cluster_facts import ClusterFacts
from dsrun.slurm.cluster.discover import discover_if_any
from dsrun.slurm.cluster.plan_gpus import with_facts
from dsrun.slurm.render.environment import gpus_of, workers
from dsrun.slurm.render.notation import parse_gpus
from dsrun.slurm.render.options import SlurmSpec
from dsrun.system.host import memory_total
from dsrun.system.terminal.stderr import print_note
from dsrun.zero.generate.presets import GIB
from dsrun.zero.memory.plan_request import GpuCluster, cluster

HERE, SLURM = "here", "slurm"


@dataclass(frozen=True, kw_only=True)
class TrainingPlace:
    """`words` describe it, `source` says why; `world` ranks in all. `cluster` are their GPUs, None on CPUs and where
    SLURM does not say which GPUs they are: `unknown` says why. `host_memory` is GiB per node. `slurm` are the options
    of the job, None on this machine."""

    source: str
    words: str
    world: int
    cluster: GpuCluster | None
    host_memory: float | None
    on_cpu: bool
    unknown: str = ""
    slurm: Mapping[str, InitAnswer[str]] | None = None


def ask_place(interview: InitInterview, given: dict[str, Any], *, is_demo: bool) -> TrainingPlace:
    """Ask where it runs, where there is a choice, and for SLURM's options if it is to run there."""
    gpus = visible_gpus()
    implied = any(given[name] is not None for name in OPTIONS)
    chosen = {True: SLURM, False: HERE, None: SLURM if implied else None}[given["slurm"]]
    if chosen == HERE and implied:
        first = next(name for name in OPTIONS if given[name] is not None)
        raise UsageError(f"--{first.replace('_', '-')} is an option of SLURM jobs", fix="leave out --no-slurm")
    facts = discover_if_any(print_note) if chosen == SLURM or (chosen is None and which("sbatch")) else None
    if chosen is None and facts is None:
        return _this_machine(gpus, "there is no SLURM cluster here")
    if chosen is None:
        choices = ((HERE, f"this machine: {_described(gpus)}"), (SLURM, "a SLURM job"))
        why = "this machine has GPUs" if gpus else "sbatch is here, and this machine has no GPU"
        asked = question("--slurm", _check_place, choices=choices, default=HERE if gpus else SLURM, why=why)
        answered = interview.answer(asked, None)
        chosen, source = answered.value, answered.source
    else:
        source = "as --no-slurm says" if chosen == HERE else "as --slurm says"
    if chosen == HERE:
        return _this_machine(gpus, source)
    if facts is None:
        print_note("there is no SLURM cluster here: the options of the job are not checked")
    return _slurm(interview, given, source, facts, is_demo=is_demo)


def _check_place(text: str) -> str:
    if text not in (HERE, SLURM):
        raise UsageError(f"{text} is not a place to run", fix=f"answer {HERE} or {SLURM}")
    return text


def _described(gpus: list[LocalGpu]) -> str:
    if not gpus:
        return "no GPU, on the CPU with gloo, slowly"
    total = gpus[0].memory_total
    memory = f" ({total / GIB:.0f} GiB)" if total else ""
    return f"{len(gpus)} × {gpus[0].name}{memory}"


def _this_machine(gpus: list[LocalGpu], source: str) -> TrainingPlace:
    found, unknown = None, ""
    if gpus:
        sizes = [each.memory_total / GIB for each in gpus if each.memory_total is not None]
        try:
            found = cluster(f"{gpus[0].name}:{len(gpus)}", memory=min(sizes) if sizes else None)
        except UsageError as error:
            unknown = error.message
    words = f"this machine ({_described(gpus) if gpus else 'its CPU'})"
    if not gpus:
        print_note("no GPU here: the run trains on the CPU, slowly")
    return TrainingPlace(
        source=source, words=words, world=len(gpus) or 1, cluster=found, host_memory=memory_total() / GIB,
        on_cpu=not gpus, unknown=unknown,
    )  # fmt: skip


def _slurm(
    interview: InitInterview, given: dict[str, Any], source: str, facts: ClusterFacts | None, *, is_demo: bool
) -> TrainingPlace:
    job = ask_job(interview, given, facts, is_demo=is_demo)
    spec = job.spec
    gpus, unknown, host = None, "", None
    if gpus_of(spec):
        gpus, host, unknown = _gpus_of_cluster(facts, spec)
    count = gpus_of(spec)
    each = f"{count} GPU{'s' * (count > 1)}" if count else "CPUs"
    return TrainingPlace(
        source=source, words=f"a SLURM job on {spec.nodes} node{'s' * (spec.nodes > 1)} with {each}",
        world=spec.nodes * workers(spec), cluster=gpus, host_memory=host, on_cpu=not count, unknown=unknown,
        slurm=job.answers,
    )  # fmt: skip


def _gpus_of_cluster(facts: ClusterFacts | None, spec: SlurmSpec) -> tuple[GpuCluster | None, float | None, str]:
    """The GPUs to plan for, GiB of host memory, and why they are not known where they are not."""
    if facts is None:
        return None, None, "the GPUs of the cluster are not known here"
    kind, count = parse_gpus(spec.gpus_per_node or "") or (None, 0)
    wanted = {"partition": spec.partition, "nodes": spec.nodes, "gpus": kind, "gpu_memory": None, "host_memory": None}
    if spec.partition is None and (default := facts.partition(None)):
        wanted["partition"] = default.name
    with suppress(UsageError):
        found = with_facts(wanted, facts, lambda _: None)
        name = found["gpus"].rpartition(":")[0]
        gpus = cluster(f"{name}:{count}", nodes=spec.nodes, memory=found["gpu_memory"])
        return gpus, found["host_memory"], ""
    return None, None, "SLURM does not say which GPUs they are"
